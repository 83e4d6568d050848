"""Programs of ours without pandas: Arrow imports it where it is installed, which takes longer than all other imports.

A library must not do this. Worker processes and the command line do, until Spark is used, which needs pandas.
"""

from __future__ import annotations

import sys


class _HiddenPandas:
    """Makes Python believe that pandas is not installed."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def hide_pandas() -> None:
    """Let imports of pandas fail in this process."""
    if _HiddenPandas not in sys.meta_path:
        sys.meta_path.insert(0, _HiddenPandas)


def show_pandas() -> None:
    """Let pandas be imported again."""
    if _HiddenPandas in sys.meta_path:
        sys.meta_path.remove(_HiddenPandas)
