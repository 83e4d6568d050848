"""Packages export what they say, under one name each; `dir(pyarctic)` shows what is public."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

import pyarctic
from tests.architecture.sources import MODULES, PACKAGE, Module

PACKAGES = [module for module in MODULES if module.is_package]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda module: module.name)
def test_a_package_says_what_it_is_and_exports_what_it_says(package: Module) -> None:
    assert ast.get_docstring(package.tree)
    loaded = importlib.import_module(package.name)
    exported = getattr(loaded, "__all__", [])
    assert sorted(exported) == sorted(set(exported))
    for name in exported:
        assert getattr(loaded, name) is not None
    with pytest.raises(AttributeError, match="has no attribute"):
        _ = loaded.nothing_of_that_name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda module: module.name)
def test_no_export_has_the_name_of_a_module_beside_it(package: Module) -> None:
    """Importing that module would put it in the place of the export."""
    exported = set(getattr(importlib.import_module(package.name), "__all__", []))
    beside = {path.stem for path in package.path.parent.glob("*.py")} | {
        path.name for path in package.path.parent.iterdir() if (path / "__init__.py").exists()
    }
    assert exported & beside <= {"errors"}, "which is exported as a module"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda module: module.name)
def test_what_type_checkers_see_is_what_is_exported(package: Module) -> None:
    exported = set(getattr(importlib.import_module(package.name), "__all__", []))
    seen = {
        alias.asname or alias.name
        for block in package.tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyarctic.")
        for alias in node.names
    }
    if package.name != "pyarctic":  # its functions need types of other rooms
        assert seen <= exported


def test_dir_shows_what_is_public() -> None:
    assert set(dir(pyarctic)) == set(pyarctic.__all__)


@pytest.mark.parametrize("name", [name for name in pyarctic.__all__ if inspect.isfunction(getattr(pyarctic, name))])
def test_public_functions_are_explained_with_an_example(name: str) -> None:
    explained = inspect.getdoc(getattr(pyarctic, name)) or ""
    assert f"arctic.{name}(" in explained


def test_public_classes_and_functions_have_docstrings() -> None:
    missing = [
        f"{module.name}.{node.name}"
        for module in MODULES
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.name in getattr(importlib.import_module(module.name.rpartition(".")[0] or "pyarctic"), "__all__", [])
        and not ast.get_docstring(node)
    ]
    assert missing == []


def test_the_package_is_typed_for_its_users() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_importing_the_package_loads_neither_arrow_nor_iceberg() -> None:
    code = "import sys, pyarctic; print([m for m in ('pyarrow', 'pyiceberg', 'polars', 'pyspark') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
