"""Spark: how a session is started so that PyArctic runs well on it.

Knows: which Java and which Python Spark must use, the settings that make many small Python tasks cheap, how to keep
Spark quiet. It is the only room that may import pyspark, and does so inside functions: `import pyarctic` needs no Java.

Must not know: what a command line is, or how a table is laid out (it asks the rooms below).
"""

from pyarctic.spark.session import session

__all__ = ["session"]
