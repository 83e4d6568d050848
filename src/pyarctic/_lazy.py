"""Package exports that are imported on first use.

Other packages import from a package's `__init__`. Importing all its modules there would slow down every start (worker
processes and the command line are started often) and would create import cycles between packages that use each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that exports names of its modules.

    __getattr__ = lazy_exports(__name__, {"file_list": ("FileList",)})
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: N807  # becomes the `__getattr__` of the package
        if name in module_of:
            return getattr(import_module(f"{package}.{module_of[name]}"), name)
        msg = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(msg)

    return __getattr__
