"""Exports of a package that are imported on first use.

A package's `__init__` is what other packages import from. Loading all its modules at once would make every start slow
(worker processes and the command line are started often) and would tie packages that need each other into cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that exports names of its modules: `{"file_list": ("FileList",)}`."""
    homes = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: N807  # it becomes the package's own
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        msg = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(msg)

    return __getattr__
