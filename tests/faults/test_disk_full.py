"""A disk that is full at any of the writes of a commit."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import Table

from pyarctic.errors import Unavailable
from pyarctic.iceberg.commit import Change, Committed, ManifestRewrite, commit
from tests.faults.lab import Kind, Lab, Point, content, make_change
from tests.support.integrity import missing, on_disk


@pytest.mark.parametrize(
    ("kind", "version"), [("append", 2), ("upsert", 2), ("rebase", 2), ("rebase", 3), ("manifests", 3), ("properties", 2)]
)
@pytest.mark.parametrize("moment", ["before", "half"])
def test_a_full_disk_is_told_and_harms_nothing(lab: Lab, kind: Kind, version: int, moment: str) -> None:
    table = lab.table(version)
    change = make_change(table, kind)
    ready = lab.loaded(table)
    before, files = content(ready), on_disk(ready)
    failed: list[Point] = []
    while (point := full_at(lab, table, change, moment, len(failed))) is not None:
        failed.append(point)
        found = lab.loaded(table)
        assert found.metadata_location == ready.metadata_location
        assert on_disk(found) == files
    wanted = {"write of metadata"} | ({"write of manifest list", "write of manifest"} if kind != "properties" else set())
    wanted |= {"write of delete file"} if kind == "rebase" else set()
    assert {what for what, _ in failed} == wanted
    done = lab.loaded(table)
    assert missing(done) == []
    assert kind not in ("rebase", "manifests", "properties") or content(done) == before


def full_at(lab: Lab, table: Table, change: Change | ManifestRewrite, moment: str, number: int) -> Point | None:
    """Commit with a disk that is full from one write on; tells which that was, or None when there are fewer and it went
    well."""
    writes: list[Point] = []

    def trap(point: Point) -> None:
        what, when = point
        if what.startswith("write of") and when == moment:
            writes.append(point)
            if len(writes) > number:
                raise OSError(errno.ENOSPC, "No space left on device")

    with lab.trapped(lambda _: None) as catalog:
        mine = catalog.load_table(table.name())
        catalog.trap = trap
        try:
            outcome = commit(mine, change)
        except Unavailable as error:
            told = error
        else:
            assert isinstance(outcome, Committed)
            return None
    assert "No space left" in str(told)
    assert told.hint is not None
    return writes[number]


def test_a_full_disk_after_a_lost_answer_is_not_told_as_failure(lab: Lab) -> None:
    table = lab.table(2)
    change = make_change(table, "append")
    faults: list[tuple[Point, Exception]] = [
        (("commit", "after"), CommitStateUnknownException("the gateway gave up")),
        (("load", "before"), OSError(errno.ENOSPC, "No space left on device")),
    ]

    def trap(point: Point) -> None:
        if faults and point == faults[0][0]:
            raise faults.pop(0)[1]

    with lab.trapped(lambda _: None) as catalog:
        mine = catalog.load_table(table.name())
        catalog.trap = trap
        outcome = commit(mine, change)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 3
    assert Path(outcome.metadata.snapshots[-1].manifest_list.removeprefix("file://")).exists()
