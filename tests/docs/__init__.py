"""The documentation: its code runs, its links lead somewhere, and its reference pages say what the code says."""
