"""The public names of the package."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.resources import files

import pyarctic


def test_dir_shows_the_public_names_only() -> None:
    import pyarctic.tables  # its submodules are still there

    assert dir(pyarctic) == sorted(pyarctic.__all__)
    assert pyarctic.tables.open_table is not None


def test_public_functions_document_their_parameters() -> None:
    for name in pyarctic.__all__:
        function = getattr(pyarctic, name)
        if inspect.isfunction(function):
            text = function.__doc__ or ""
            assert f"{name}(" in text, f"{name} has no example"
            assert not [parameter for parameter in inspect.signature(function).parameters if f"{parameter}: " not in text]


def test_type_checkers_use_the_annotations() -> None:
    assert files("pyarctic").joinpath("py.typed").is_file()


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, pyarctic; print({'pyarrow', 'pyiceberg', 'polars', 'pyspark'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
