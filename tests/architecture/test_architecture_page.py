"""docs/architecture.md names files and folders that exist, and all rooms and packages there are."""

from __future__ import annotations

import re

from tests.architecture.sources import MODULES, PACKAGE, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
_PATH = re.compile(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`")


def test_every_path_on_the_page_exists() -> None:
    named = set(_PATH.findall(PAGE))
    assert len(named) > 80
    assert [path for path in sorted(named) if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == []


def test_every_package_is_on_the_page() -> None:
    packages = {
        f"{module.path.parent.relative_to(PACKAGE).as_posix()}/"
        for module in MODULES
        if module.is_package and module.path.parent != PACKAGE
    }
    assert packages - set(_PATH.findall(PAGE)) == set()


def test_every_contract_of_import_linter_is_on_the_page() -> None:
    for fact in ("lint-imports", "tools/import_contracts.py", "table_properties"):
        assert fact in PAGE
