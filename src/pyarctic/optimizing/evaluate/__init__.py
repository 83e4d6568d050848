"""Evaluating: measuring files and partitions, and the rules that call for optimizing."""
