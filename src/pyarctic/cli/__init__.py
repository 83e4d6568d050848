"""The command `arctic`: a thin layer over the library, organized as `arctic NOUN VERB`.

Knows Typer, Rich and how results are displayed, but nothing about tables: each command calls the library and passes the
result to `view.output`, the only module that writes to stdout. Heavy libraries are imported inside the commands that
need them, so that `--help` and `version` stay fast.
"""

from pyarctic.cli.app import main

__all__ = ["main"]
