"""Many writers on one table: processes of ours and Iceberg Java, and at the end exactly the rows that they were told of.

`make stress` runs the long form; a short one is among the tests.
"""
