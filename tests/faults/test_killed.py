"""Death at every step of a commit, every file it writes or deletes, every call of the catalog."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyiceberg.table import Table

from pyarctic.iceberg.commit import Change, Committed, ManifestRewrite, commit
from tests.faults.killed import die, points_of
from tests.faults.lab import Content, Kind, Lab, Point, content, make_change
from tests.support.integrity import leftovers, missing, on_disk, sequence_numbers_differ, untrue_totals

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kind", "version"), [("append", 2), ("upsert", 2), ("rebase", 2), ("properties", 2), ("manifests", 3), ("rebase", 3)]
)
def test_a_commit_that_dies_anywhere_leaves_one_of_two_tables_and_is_repeated_exactly_once(
    lab: Lab, kind: Kind, version: int
) -> None:
    case = rehearsal(lab, lab.table(version), kind)
    assert ("commit", "after") in case.points
    for number, point in enumerate(case.points):
        lab.rewind(case.table, case.files)
        assert die(lab, case.name, case.change, number) == point
        check_one_of_two(lab, case, point)
        check_repeated(lab, case)


def test_sigkill(lab: Lab) -> None:
    first = rehearsal(lab, lab.table(3), "rebase")
    # Every third point: the test above dies at all of them, in this process.
    chosen = range(0, len(first.points), 3)
    cases = []
    for number in chosen:
        table = lab.table(3)
        change = make_change(table, "rebase")
        case = replace(first, table=lab.loaded(table), change=change)
        cases.append(case)
        (lab.folder / f"{case.name}.{number}.change").write_bytes(pickle.dumps(case.change))
    command = [sys.executable, "-m", "tests.faults.killed", str(lab.folder)]
    died = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert sorted(died) == sorted(f"{case.name} {-signal.SIGKILL}" for case in cases)
    for number, case in zip(chosen, cases, strict=True):
        check_one_of_two(lab, case, first.points[number])
        check_repeated(lab, case)


@dataclass(frozen=True)
class Case:
    """A change that is ready to be committed to a table, what that comes by, and the rows before and after it."""

    table: Table
    change: Change | ManifestRewrite
    files: set[str]
    points: list[Point]
    before: Content
    after: Content

    @property
    def name(self) -> str:
        return ".".join(self.table.name())


def rehearsal(lab: Lab, table: Table, kind: Kind) -> Case:
    """Commit without harm, and go back to the state before."""
    change = make_change(table, kind)
    ready = lab.loaded(table)
    before, files = content(ready), on_disk(ready)
    points = points_of(lab, ".".join(table.name()), change)
    done = lab.loaded(table)
    check_whole(done)
    # Files of the change itself were there before: only the commit's own are at stake.
    assert leftovers(done, change) == []
    case = Case(ready, change, files, points, before, content(done))
    lab.rewind(ready, keep=files)
    return case


def check_one_of_two(lab: Lab, case: Case, point: Point) -> None:
    found = lab.loaded(case.table)
    assert missing(found) == [], point
    assert content(found) in ([case.after] if is_past(point) else [case.before, case.after]), point


def is_past(point: Point) -> bool:
    """Whether the catalog has taken the commit for certain."""
    return point in [("commit", "after"), *(("step", step) for step in ("sent", "answered", "cleaned"))]


def check_repeated(lab: Lab, case: Case) -> None:
    # The process that comes after it knows the change from a file.
    change = pickle.loads(pickle.dumps(case.change))
    makes = 1 if isinstance(change, ManifestRewrite) or change.changes_files else 0
    for _ in range(2):
        outcome = commit(lab.loaded(case.table), change)
        assert isinstance(outcome, Committed)
        assert outcome.snapshot_id == (change.snapshot_id if makes else None)
    done = lab.loaded(case.table)
    assert content(done) == case.after
    assert len(done.metadata.snapshots) == len(case.table.metadata.snapshots) + makes
    assert missing(done) == []


def check_whole(table: Table) -> None:
    assert missing(table) == []
    assert untrue_totals(table) == []
    assert sequence_numbers_differ(table)
