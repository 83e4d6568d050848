"""A small writer of Iceberg tables made from the specification alone: JSON, fastavro and PyArrow, no code of ours.

What it writes is an independent opinion about the format, for tests without a JVM and for benchmarks.
"""

from tests.models.spec.table import SpecFile, SpecTable

__all__ = ["SpecFile", "SpecTable"]
