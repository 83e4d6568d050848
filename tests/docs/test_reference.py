"""The reference pages say what the code says; `make docs-reference` writes them anew."""

from __future__ import annotations

import re

import pytest

import pyarctic
import pyarctic.spark
from pyarctic.cli.errors import EXIT_CODES
from pyarctic.server import openapi_text
from tests.docs.pages import DOCS
from tools import reference

_PAGES = sorted((DOCS / "reference").glob("*.md"))


@pytest.mark.parametrize("path", _PAGES, ids=lambda path: path.name)
def test_generated_parts_are_up_to_date(path: object) -> None:
    text = (DOCS / "reference" / str(path)).read_text(encoding="utf-8")
    assert reference.generated(text) == text, "run `make docs-reference`"


def test_the_description_of_the_http_interface_is_up_to_date() -> None:
    assert reference.OPENAPI.read_text(encoding="utf-8") == openapi_text(), "run `make docs-reference`"


def test_every_generated_part_is_on_a_page() -> None:
    shown = "\n".join(path.read_text(encoding="utf-8") for path in _PAGES)
    assert set(re.findall(r"<!-- generated: ([\w-]+) -->", shown)) == set(reference.PARTS)


def test_every_error_code_has_a_section() -> None:
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## `([\w-]+)`$", page, re.MULTILINE)) == set(EXIT_CODES)


def test_no_cell_of_a_table_has_a_bar() -> None:
    shown = "\n".join(path.read_text(encoding="utf-8") for path in _PAGES)
    assert re.findall(r"^\|.*\\\|.*$", shown, re.MULTILINE) == []


def test_every_public_name_is_on_the_page_of_the_python_api() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    public = {name for name in pyarctic.__all__ if not name.startswith("_") and name != "errors"}
    assert public <= {name.rpartition(".")[2] for name in shown}
    in_spark = {name.rpartition(".")[2] for name in shown if name.startswith("pyarctic.spark.")}
    assert in_spark == set(pyarctic.spark.__all__)
