"""Keyed tables made by Apache Amoro (tests/data/mixed-iceberg), optimized: their rows stay as their maker reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.optimizing import KindChoice, Options
from pyarctic.optimizing.api import plan_table
from pyarctic.tables import ScanStore
from pyarctic.tables.format.file_names import parse_file_names
from tests.support.amoro import NAMES, AmoroTable, adopted, texts
from tests.support.optimizing import optimize

KINDS: tuple[KindChoice, ...] = ("minor", "major", "full")


_RATIO = "self-optimizing.major.trigger.duplicate-ratio"


def made(name: str, folder: Path) -> AmoroTable:
    """Amoro takes ratios above one."""
    amoro = adopted(name, folder)
    if float(amoro.table.properties.get(_RATIO, "0")) > 1:
        amoro.table.set({_RATIO: "1"})
    return amoro


def shown(amoro: AmoroTable, store: ScanStore) -> object:
    return texts(amoro.table.refresh().scan(store=store).to_arrow().to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_stay(name: str, kind: KindChoice, tmp_path: Path) -> None:
    amoro = made(name, tmp_path)
    expected = texts(amoro.expected["merged"])
    assert shown(amoro, "merged") == expected
    pending = amoro.table._pending().height
    report = optimize(amoro.table, kind)
    assert not report.failures
    assert not report.dropped
    assert bool(report.tasks_committed) or not pending
    assert shown(amoro, "merged") == expected
    assert shown(amoro, "base") == expected
    assert amoro.table._pending().is_empty()
    again = plan_table(amoro.table, Options(kind=kind))
    assert again is not None
    assert not again.tasks


@pytest.mark.parametrize("name", [name for name in NAMES if "minor" in name])
def test_no_deletes_are_left_after_full(name: str, tmp_path: Path) -> None:
    amoro = made(name, tmp_path)
    optimize(amoro.table, "full")
    files = parse_file_names(amoro.table.refresh().file_list.frame(), "base")
    assert files.filter(~IS_DATA).is_empty()
    merged = amoro.table.merged_sequences()
    assert set(files["transaction_id"]) <= set(range(max(merged.values()) + 1))


def test_a_ratio_that_is_never_reached(tmp_path: Path) -> None:
    amoro = adopted("bigint_pd__minor", tmp_path)
    assert amoro.table.properties[_RATIO] == "10"
    assert not optimize(amoro.table, "full").failures
