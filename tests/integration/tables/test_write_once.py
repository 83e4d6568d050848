"""Writes that are steps of a job: each is in the table once, however often and by how many it is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import OutcomeUnknown, UsageError
from pyarctic.tables import Table, WriteMode
from tests.support.integrity import leftovers, missing

pytestmark = pytest.mark.usefixtures("lake")

NAME = "lake.db.t"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
MODES = [
    *((kind, mode) for kind in ("native", "unkeyed") for mode in ("insert", "overwrite")),
    *(("keyed", mode) for mode in ("insert", "upsert", "delete", "cdc", "overwrite")),
]
all_modes = pytest.mark.parametrize(("kind", "mode"), MODES)


def made(kind: str) -> Table:
    return pyarctic.create_table(
        NAME,
        SCHEMA,
        ["id"] if kind == "keyed" else [],
        properties={"commit.retry.min-wait-ms": "1"},
        format="iceberg" if kind == "native" else "mixed-iceberg",
    )


def rows(mode: WriteMode, *texts: str) -> pa.Table:
    columns: dict[str, Any] = {"id": [*range(len(texts))], "text": [*texts]}
    if mode == "cdc":
        columns["_change_action"] = ["INSERT"] * len(texts)
    return pa.table(columns)


def snapshots(catalog: Catalog) -> int:
    return sum(len(catalog.load_table(name).metadata.snapshots) for name in catalog.list_tables("db"))


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix in (".parquet", ".avro", ".json")}


@all_modes
def test_a_step_is_written_once(lake: Catalog, tmp_path: Path, kind: str, mode: WriteMode) -> None:
    table = made(kind)
    table.write(pa.table({"id": [7], "text": ["first"]}))
    assert table.write(rows(mode, "a", "b"), mode, once=("my-job", 42)) is not None
    content, count, present = table.refresh().scan().to_arrow(), snapshots(lake), files(tmp_path)
    reopened = pyarctic.table(NAME)
    for handle in (table, reopened):
        for number in (42, 41, 0):
            assert handle.write(unreadable(), mode, once=("my-job", number)) is None
    assert (table.refresh().scan().to_arrow(), snapshots(lake), files(tmp_path)) == (content, count, present)
    assert (table.last_once("my-job"), table.last_once("other")) == (42, None)
    assert table.write(rows(mode, "c"), mode, once=("other", 1)) is not None
    assert table.write(rows(mode, "d"), mode, once=("my-job", 50)) is not None
    assert (reopened.refresh().last_once("my-job"), reopened.last_once("other")) == (50, 1)


def unreadable() -> Iterator[pa.RecordBatch]:
    """Rows that nobody may ask for."""
    pytest.fail("rows of a step that was written before were read")
    yield


@all_modes
def test_of_many_who_take_a_step_one_does(lake: Catalog, kind: str, mode: WriteMode) -> None:
    made(kind).write(pa.table({"id": [0], "text": ["first"]}))

    def write(name: str) -> int | None:
        return pyarctic.table(NAME).write(rows(mode, name), mode, once=("job", 1))

    with ThreadPoolExecutor(4) as writers:
        results = list(writers.map(write, "abcd"))
    assert len([result for result in results if result is not None]) == 1
    table = pyarctic.table(NAME)
    assert table.last_once("job") == 1
    for name in lake.list_tables("db"):
        loaded = lake.load_table(name)
        assert missing(loaded) == []
        assert [path for path in leftovers(loaded) if path.endswith(".parquet")] == []


@all_modes
def test_a_lost_answer_is_found_by_repeating_the_step(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch, kind: str, mode: WriteMode
) -> None:
    table = made(kind)
    table.set({"commit.retry.num-retries": "0"})
    send: Any = type(lake).commit_table
    lost_answers = iter([False, True] if (kind, mode) == ("keyed", "overwrite") else [True])  # its transaction comes first

    def lose(catalog: Any, *request: Any) -> Any:
        answer = send(catalog, *request)
        if next(lost_answers, False):
            raise TimeoutError
        return answer

    monkeypatch.setattr(type(lake), "commit_table", lose)
    with pytest.raises(OutcomeUnknown):
        table.write(rows(mode, "a"), mode, once=("job", 1))
    content = pyarctic.table(NAME).scan().to_arrow()
    assert pyarctic.table(NAME).write(unreadable(), mode, once=("job", 1)) is None
    assert pyarctic.table(NAME).scan().to_arrow() == content


@all_modes
def test_a_step_without_rows_is_recorded(lake: Catalog, kind: str, mode: WriteMode) -> None:
    table = made(kind)
    nothing = rows(mode, "a").slice(0, 0)
    assert table.write(nothing, mode) is None
    count = snapshots(lake)
    assert table.write(nothing, mode, once=("job", 1)) is not None
    assert table.write(unreadable(), mode, once=("job", 1)) is None
    assert (table.scan().count(), table.last_once("job")) == (0, 1)
    assert snapshots(lake) - count == (3 if (kind, mode) == ("keyed", "overwrite") else 1)  # its transaction is ended
    table.write(pa.table({"id": [7], "text": ["x"]}))
    assert table.refresh().scan().count() == 1
    pyarctic.optimize(NAME)
    assert pyarctic.table(NAME).scan().count() == 1


def test_steps_of_a_keyed_table_are_known_to_both_stores() -> None:
    table = made("keyed")
    assert table.write(rows("overwrite", "a"), "overwrite", once=("job", 1)) is not None
    assert table.write(unreadable(), "upsert", once=("job", 1)) is None
    assert table.write(rows("upsert", "b"), "upsert", once=("job", 2)) is not None
    assert table.write(unreadable(), "overwrite", once=("job", 2)) is None


@pytest.mark.parametrize(
    "once",
    [("a b", -1), ("a b", 1), ("", 1), ("job", -1), ("job", "1"), ("job", 1.0), ("job", True), ("job",), "job", 7, (1, 1)],
    ids=str,
)
def test_bad_steps(once: Any) -> None:
    table = made("unkeyed")
    with pytest.raises(UsageError) as refusal:
        table.write(unreadable(), once=once)
    assert "my-job" in (refusal.value.hint or "")
    assert table.refresh().view.snapshot_id is None


def test_other_errors_are_not_hidden_by_a_step() -> None:
    table = made("unkeyed")
    table.write(rows("insert", "a"), once=("job", 1))
    with pytest.raises(UsageError, match="needs a primary key"):
        table.write(rows("upsert", "a"), "upsert", once=("job", 1))
    with pytest.raises(UsageError, match="unknown more"):
        table.write(pa.table({"more": [1]}), once=("job", 2))
    assert table.last_once("job") == 1
    assert table.write(rows("insert", "b"), once=("job", 2)) is not None
    with pytest.raises(UsageError, match="name of a job"):
        table.last_once("a b")
