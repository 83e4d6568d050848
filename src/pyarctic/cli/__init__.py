"""The command `arctic`: nouns, then verbs, over the library.

Knows Typer, Rich and how answers are shown. Holds no knowledge of tables: each command asks the library and hands what
it got to `output`, the one place that writes to stdout. Heavy libraries are imported inside the commands that need
them, so that help and version stay quick.
"""

from pyarctic.cli.app import main

__all__ = ["main"]
