"""Changes at the door of the library: the table moves on, and what does not work out is raised."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from pyarctic import errors
from pyarctic.iceberg.commit import Change, Committed, Conflict, Outcome, Rejected, Unknown
from pyarctic.tables import table as handle
from pyarctic.tables.commit_outcomes import require_committed
from tests.integration.iceberg.conftest import Lake, rows


def test_commit_moves_the_table_on(lake: Lake) -> None:
    made = lake.make()
    made.commit(made.data(rows(1, 2)))
    made.commit(made.data(rows(3)))
    table = lake.open()
    first = table.file_list.frame().filter(pl.col("record_count") == 2)
    committed = table.commit(Change(start=table.file_list.snapshot_id, remove=first))
    assert table.scan(["id"]).to_arrow().column("id").to_pylist() == [3]
    assert table.snapshots()["snapshot_id"].to_list()[-1] == committed.snapshot_id


def test_manifests_are_merged(lake: Lake) -> None:
    made = lake.make(partition=[("part", "identity")])
    for number in range(5):
        part = "pq"[number % 2]
        made.commit(made.data(rows(number, part=part), (part,)))
    table = lake.open()
    planned = table.rewrite_manifests(dry_run=True)
    assert planned.to_dict() == {
        "table": "lake.db.t",
        "snapshot_id": None,
        "rewritten": 5,
        "manifests_before": 5,
        "manifests_after": None,
    }
    done = table.rewrite_manifests()
    assert (done.rewritten, done.manifests_before, done.manifests_after) == (5, 5, 1)
    assert table.files()["partition"].to_list() == ["part=p"] * 3 + ["part=q"] * 2
    assert table.scan().count() == 5
    again = table.rewrite_manifests()
    assert (again.rewritten, again.snapshot_id) == (0, None)
    assert table.rewrite_manifests(everything=True).rewritten == 1


@pytest.mark.parametrize(
    ("outcome", "error", "told"),
    [
        (Conflict(reason="busy", attempts=5), errors.Conflict, "5 attempts"),
        (Rejected(code="proof", reason="rows are missing", hint="Look.", facts={"file": "f"}), errors.Rejected, "rows are"),
        (Unknown(snapshot_id=7, reason="timeout", attempts=1), errors.OutcomeUnknown, "snapshot 7"),
    ],
)
def test_outcomes_as_errors(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, error: type[errors.ArcticError], told: str
) -> None:
    made = lake.make()
    made.commit(made.data(rows(1)))
    table = lake.open()

    def answer(*_: Any, **__: Any) -> Outcome:
        return outcome

    monkeypatch.setattr(handle, "commit", answer)
    with pytest.raises(error, match=told) as caught:
        table.commit(Change(start=None, set_properties={"a": "b"}))
    assert caught.value.facts["table"] == "lake.db.t"
    assert caught.value.hint
    if isinstance(outcome, Rejected):
        assert caught.value.facts["reason"] == "proof"


def test_a_commit_is_given_back(lake: Lake) -> None:
    made = lake.make()
    made.commit(made.data(rows(1)))
    committed = Committed(snapshot_id=1, metadata=lake.open().view.metadata, attempts=1)
    assert require_committed(committed) is committed
