"""Evaluating partitions: measures, rules, and the kind of optimizing each one needs."""
