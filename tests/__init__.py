"""The tests. A package, so that `tests.oracle` is found whatever other `tests` are on the path."""
