"""The modules of PyArctic, parsed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pyarctic"


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path

    @property
    def name(self) -> str:
        parts = self.path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(parts).removesuffix(".__init__")

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse("\n".join(self.lines))

    def functions(self) -> Iterator[ast.FunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef))


MODULES = sorted((Module(path) for path in PACKAGE.rglob("*.py")), key=lambda module: module.name)
