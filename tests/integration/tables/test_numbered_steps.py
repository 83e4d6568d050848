"""Steps that are taken once, whoever tries them again: the table itself remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import OutcomeUnknown, Rejected
from pyarctic.iceberg.commit import Change, Committed, NumberedStep
from pyarctic.tables import KeyedTable, Table, WriteMode
from pyarctic.tables.write.prepared import CommitNote, PreparedWrite
from tests.support.integrity import leftovers, missing

pytestmark = pytest.mark.usefixtures("lake")

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
STEP = "arctic.stream.q"


def rows(*texts: str) -> pa.Table:
    return pa.table({"id": [*range(len(texts))], "text": [*texts]}, schema=SCHEMA)


def made(kind: str) -> Table:
    return pyarctic.create_table("lake.n.t", SCHEMA, ["id"] if kind == "keyed" else [])


def note(number: int) -> CommitNote:
    return CommitNote(summary={"batch": str(number)}, once=NumberedStep(property=STEP, number=number))


def committed(write: PreparedWrite, text: str, number: int) -> int | None:
    return write.commit(write.writer().files(rows(text)), note(number))


def stores(catalog: Catalog) -> list[str]:
    return [".".join(name) for name in catalog.list_tables("n")]


def batches_of(catalog: Catalog) -> list[str]:
    """What snapshots of all stores tell."""
    found = []
    for name in stores(catalog):
        for snapshot in catalog.load_table(name).metadata.snapshots:
            told = snapshot.summary.additional_properties if snapshot.summary else {}
            found += [told["batch"]] if "batch" in told else []
    return sorted(found)


def texts(table: Table) -> list[str]:
    return sorted(table.refresh().scan().to_arrow()["text"].to_pylist())


@pytest.mark.parametrize(
    ("kind", "mode"), [("keyed", "upsert"), ("keyed", "overwrite"), ("unkeyed", "insert"), ("unkeyed", "overwrite")]
)
def test_of_two_who_take_a_step_one_does(lake: Catalog, kind: str, mode: WriteMode) -> None:
    first, second = made(kind), pyarctic.table("lake.n.t")
    for number in (3, 4):
        once = NumberedStep(property=STEP, number=number)
        assert first.refresh().last_step(STEP) in (None, number - 1)
        assert second.refresh().last_step(STEP) in (None, number - 1)
        # Both have looked, and written their files, when one of them commits.
        writes = [table.prepare_write(mode) for table in (first, second)]
        files = [write.writer().files(rows(f"{number}", "other")) for write in writes]
        assert writes[0].commit(files[0], note(number)) is not None
        with pytest.raises(Rejected) as refusal:
            writes[1].commit(files[1], note(number))
        assert refusal.value.facts["reason"] == "done-already"
        assert STEP in refusal.value.message
        assert not any(Path(file.path.removeprefix("file://")).exists() for file in files[1])
        assert second.refresh().last_step(once.property) == once.number
    # A step that is long over.
    with pytest.raises(Rejected, match="committed before"):
        committed(first.refresh().prepare_write(mode), "late", 2)
    assert batches_of(lake) == ["3", "4"]
    for name in stores(lake):
        assert missing(lake.load_table(name)) == []
        assert [path for path in leftovers(lake.load_table(name)) if path.endswith(".parquet")] == []
    assert "late" not in texts(first)


def test_the_same_change_again_is_recognised_not_refused() -> None:
    """Its answer was lost: who asks again wants to know that it was taken."""
    table = made("unkeyed")
    files = table.prepare_write("insert").writer().files(rows("a"))
    change = Change(start=None, add=tuple(files), once=NumberedStep(property=STEP, number=0))
    outcomes = [pyarctic.table("lake.n.t").try_commit(change) for _ in range(2)]
    assert [isinstance(outcome, Committed) for outcome in outcomes] == [True, True]
    assert texts(table) == ["a"]


def test_expiry_and_other_commits_do_not_bring_a_step_back(lake: Catalog) -> None:
    table = made("keyed")
    assert isinstance(table, KeyedTable)
    committed(table.prepare_write("upsert"), "step", 0)
    table.write(rows("later"), "upsert")
    name = table.change_store.name.removeprefix("lake.")
    old = table.change_store.view.metadata.snapshots[0].snapshot_id
    lake.load_table(name).maintenance.expire_snapshots().by_id(old).commit()
    again = pyarctic.table("lake.n.t")
    assert again.last_step(STEP) == 0
    assert again.last_step("arctic.stream.other") is None
    with pytest.raises(Rejected, match="committed before"):
        committed(again.prepare_write("upsert"), "again", 0)
    assert texts(table) == ["later"]


def test_nothing_to_write_takes_no_step(lake: Catalog) -> None:
    table = made("keyed")
    assert table.prepare_write("upsert").commit([], note(0)) is None
    assert table.refresh().last_step(STEP) is None
    assert batches_of(lake) == []


@pytest.mark.parametrize("step", [0, None])
@pytest.mark.parametrize("mode", ["insert", "overwrite"])
@pytest.mark.parametrize("kind", ["keyed", "unkeyed"])
def test_files_stay_if_a_lost_answer_may_be_why_it_is_refused(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch, kind: str, mode: WriteMode, step: int | None
) -> None:
    """The commit was taken and its answer lost; somebody else committed and expired its snapshot. What it finds in the table
    is its own."""
    made(kind).write(rows("old"))
    write = pyarctic.table("lake.n.t").prepare_write(mode)
    files = write.writer().files(rows("mine"))
    name = "n.t_change_" if kind == "keyed" and mode == "insert" else "n.t"
    catalog, send = type(lake), type(lake).commit_table
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]

    def lost(self: Catalog, *request: Any) -> Any:
        monkeypatch.setattr(catalog, "commit_table", send)
        taken = send(self, *request).metadata.current_snapshot_id
        self.load_table(name).append(rows("other").cast(pa.schema(fields)))
        self.load_table(name).maintenance.expire_snapshots().by_id(taken or 0).commit()
        msg = "the answer was lost"
        raise ConnectionError(msg)

    monkeypatch.setattr(catalog, "commit_table", lost)
    with pytest.raises(OutcomeUnknown):
        write.commit(files, CommitNote() if step is None else note(step))
    assert missing(lake.load_table(name)) == []
    assert all(Path(file.path.removeprefix("file://")).exists() for file in files)
