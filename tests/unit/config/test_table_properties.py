"""The registry of table properties: how values are understood, and that the page for users names all of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyarctic.config import table_properties as registry
from pyarctic.config.table_properties import TABLE_PROPERTIES, TableProperty, unknown_properties
from pyarctic.errors import UsageError
from pyarctic.optimizing.evaluate.rules import RULES

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "optimizing.md"


def test_every_rule_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not [rule.name for rule in RULES if f"| `{rule.name}` | {rule.kind} | {rule.doc} |" not in text]


def test_names_are_unique() -> None:
    names = [name for entry in TABLE_PROPERTIES for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", TABLE_PROPERTIES, ids=lambda entry: entry.name)
def test_what_is_not_set_has_its_default(entry: TableProperty[object]) -> None:
    assert entry.of({"owner": "anna"}) == entry.default


@pytest.mark.parametrize(
    ("entry", "text", "value"),
    [
        (registry.TARGET_SIZE, "134217728", 128 << 20),
        (registry.TARGET_SIZE, "128MB", 128 << 20),
        (registry.TARGET_SIZE, " 1.5 GiB ", 3 << 29),
        (registry.TARGET_SIZE, "64k", 64 << 10),
        (registry.MINOR_INTERVAL, "60000", timedelta(minutes=1)),
        (registry.MINOR_INTERVAL, "30min", timedelta(minutes=30)),
        (registry.MINOR_INTERVAL, "1.5h", timedelta(minutes=90)),
        (registry.MINOR_INTERVAL, "-1", None),
        (registry.FULL_INTERVAL, "7d", timedelta(days=7)),
        (registry.WRITERS_QUIET_TIME, "500ms", timedelta(milliseconds=500)),
        (registry.MINOR_FILE_COUNT, "3", 3),
        (registry.MAJOR_DELETE_RATIO, "1", 1.0),
        (registry.MAJOR_DELETE_RATIO, "0.25", 0.25),
        (registry.SORT_ON_REWRITE, " False ", False),
        (registry.Z_ORDER, "x, n.a ,y", ("x", "n.a", "y")),
        (registry.SORT_OVERLAP_DEPTH, "2", 2),
        (registry.SORT_OVERLAP_DEPTH, "-1", None),
    ],
)
def test_values_are_understood(entry: TableProperty[Any], text: str, value: object) -> None:
    assert entry.of({entry.name: text}) == value


@pytest.mark.parametrize(
    ("entry", "text", "allowed"),
    [
        (registry.TARGET_SIZE, "abc", "a size such as 128MB"),
        (registry.TARGET_SIZE, "0", "a size such as 128MB"),
        (registry.TARGET_SIZE, "-5", "a size such as 128MB"),
        (registry.TARGET_SIZE, "128 XB", "a size such as 128MB"),
        (registry.MINOR_FILE_COUNT, "0", "a whole number above 0"),
        (registry.MINOR_FILE_COUNT, "1.5", "a whole number above 0"),
        (registry.MIN_TARGET_RATIO, "0", "a number above 0, at most 1"),
        (registry.MIN_TARGET_RATIO, "1.1", "a number above 0, at most 1"),
        (registry.MAJOR_DELETE_RATIO, "0", "a number above 0"),
        (registry.MAJOR_DELETE_RATIO, "nan", "a number above 0"),
        (registry.MINOR_INTERVAL, "soon", "or -1 for never"),
        (registry.MINOR_INTERVAL, "-2", "or -1 for never"),
        (registry.WRITERS_QUIET_TIME, "-1", "a duration such as 30min"),
        (registry.WRITERS_FIRST, "yes", "true or false"),
        (registry.MAX_FILE_COUNT, "", "a whole number above 0"),
        (registry.Z_ORDER, "", "different columns"),
        (registry.Z_ORDER, "x, x", "different columns"),
        (registry.SORT_OVERLAP_DEPTH, "1", "a whole number above 1"),
        (registry.SORT_OVERLAP_DEPTH, "-2", "or -1 for never"),
    ],
)
def test_bad_values_are_named(entry: TableProperty[Any], text: str, allowed: str) -> None:
    with pytest.raises(UsageError) as caught:
        entry.of({entry.name: text})
    assert caught.value.message == f"table property {entry.name} = {text!r} is not valid"
    assert caught.value.facts == {"key": entry.name, "value": text}
    assert caught.value.hint is not None
    assert allowed in caught.value.hint
    assert entry.default_text in caught.value.hint


def test_the_first_name_counts() -> None:
    alias = registry.MINOR_FILE_COUNT.aliases[0]
    assert registry.MINOR_FILE_COUNT.of({alias: "5"}) == 5
    assert registry.MINOR_FILE_COUNT.of({alias: "5", registry.MINOR_FILE_COUNT.name: "7"}) == 7
    with pytest.raises(UsageError, match=alias):
        registry.MINOR_FILE_COUNT.of({alias: "many"})


def test_misspelt_names_are_found() -> None:
    known = {entry.name: "1" for entry in TABLE_PROPERTIES} | {"compact.major.file.cnt": "1", "owner": "anna"}
    assert unknown_properties(known) == {}
    assert unknown_properties({"self-optimizing.target-sise": "1", "compact.major.file.count": "1"}) == {
        "self-optimizing.target-sise": "self-optimizing.target-size",
        "compact.major.file.count": "compact.major.file.cnt",
    }
    strange = "optimize." + "z" * 40
    assert unknown_properties({strange: "1"}) == {strange: None}
