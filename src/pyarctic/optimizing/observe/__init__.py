"""Observing a table: reading everything that evaluating and planning depend on from its metadata."""
