"""Observing a table: everything that evaluating and planning depend on, read from its metadata."""
