"""Commits that Java planned before ours and makes after: it must find in our snapshots what its validation looks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.table import Table

from pyarctic.iceberg.commit import Change, Committed, ManifestRewrite, commit
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.iceberg.write import NewFile, write_position_deletes, write_vectors
from tests.oracle.javacommits import java_data_file, java_position_deletes, planned_by_java
from tests.oracle.session import Oracle
from tests.oracle.sharedtable import SharedTable, arrow
from tests.support import changes

pytestmark = pytest.mark.jvm

VERSIONS = pytest.mark.parametrize("version", [2, 3])
Make = Callable[[Table], Change | ManifestRewrite | None]


@pytest.fixture
def shared(oracle: Oracle) -> SharedTable:
    return SharedTable(oracle, oracle.catalog, oracle.name, f"{oracle.namespace()}.t")


def begin(shared: SharedTable, version: int) -> Table:
    """One data file with the rows 1, 2 and 3, and a manifest with nothing else."""
    shared.create("whole", version, by_java=False, properties={})
    return add(shared, lambda table: changes.append(table, rows(1, 2, 3)))


def rows(*keys: int) -> Any:
    return arrow((key, 0, "v") for key in keys)


def add(shared: SharedTable, make: Make) -> Table:
    change = make(shared.load())
    assert change is not None
    outcome = commit(shared.load(), change)
    assert isinstance(outcome, Committed), outcome
    return shared.load()


def delete_one(table: Table) -> Change | None:
    return changes.position_delete(table, "id = 1")


def delete_key(table: Table) -> Change:
    return changes.equality_delete(table, rows(1).select(["id"]))


def drop_files(table: Table) -> Change:
    return Change(start=changes.head(table), remove=changes.files(table).filter(IS_DATA))


def rewrite_manifests(_: Table) -> ManifestRewrite:
    return ManifestRewrite()


def deletes_of(table: Table, path: str, position: int) -> NewFile:
    if table.format_version > 2:
        (file,) = write_vectors(changes.target(table), {path: np.array([position])})
        return file
    return write_position_deletes(changes.target(table), {path: np.array([position])})


class Planned:
    """Java's view of the table before we commit, and commits on the strength of it."""

    def __init__(self, shared: SharedTable) -> None:
        self._shared = shared
        self._table = shared.load()
        self._java = shared.oracle.java_table(shared.name)
        self._start = changes.head(self._table)
        (self._task,) = planned_by_java(shared)
        self._path = str(self._task.file().location())

    def rewrite(self, *, keep_sequence: bool = False) -> None:
        (new,) = changes.write_data(self._table, changes.rows(self._table))
        rewrite = self._java.newRewrite().validateFromSnapshot(self._start)
        if keep_sequence:
            rewrite = rewrite.dataSequenceNumber(1)
        rewrite.deleteFile(self._task.file()).addFile(java_data_file(self._shared, new)).commit()

    def delete(self, position: int = 1) -> None:
        deletes = java_position_deletes(self._shared, deletes_of(self._table, self._path, position))
        named = self._shared.oracle.java.java.util.ArrayList()
        named.add(self._path)
        delta = self._java.newRowDelta().addDeletes(deletes).validateFromSnapshot(self._start)
        delta.validateDataFilesExist(named).validateDeletedFiles().commit()

    def overwrite(self) -> None:
        always = self._shared.oracle.java.org.apache.iceberg.expressions.Expressions.alwaysTrue()
        overwrite = self._java.newOverwrite().validateFromSnapshot(self._start).conflictDetectionFilter(always)
        overwrite.deleteFile(self._task.file()).validateNoConflictingData().validateNoConflictingDeletes().commit()


REFUSED: list[tuple[str, Make, Callable[[Planned], None], str]] = [
    ("rewrite after delete", delete_one, Planned.rewrite, "found new delete for replaced data file"),
    ("rewrite after equality delete", delete_key, Planned.rewrite, "found new delete for replaced data file"),
    ("rewrite after rewrite", changes.rewrite, Planned.rewrite, "Missing required files to delete"),
    ("delete after rewrite", changes.rewrite, Planned.delete, "missing data files"),
    ("delete after removal", drop_files, Planned.delete, "missing data files"),
    (
        "overwrite after append",
        lambda table: changes.append(table, rows(4)),
        Planned.overwrite,
        "Found conflicting files that can contain records",
    ),
    ("overwrite after delete", delete_one, Planned.overwrite, "found new delete for replaced data file|conflicting delete"),
    ("overwrite after rewrite", changes.rewrite, Planned.overwrite, "Missing required files to delete|missing data files"),
]


@VERSIONS
@pytest.mark.parametrize(("ours", "then", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_java_refuses(shared: SharedTable, version: int, ours: Make, then: Callable[[Planned], None], reason: str) -> None:
    begin(shared, version)
    planned = Planned(shared)
    after = add(shared, ours)
    with pytest.raises(Py4JJavaError, match=reason):
        then(planned)
    assert changes.head(shared.load()) == changes.head(after)


def test_java_refuses_a_second_deletion_vector(shared: SharedTable) -> None:
    begin(shared, 3)
    planned = Planned(shared)
    add(shared, delete_one)
    with pytest.raises(Py4JJavaError, match="Found concurrently added DV"):
        planned.delete()


@VERSIONS
@pytest.mark.parametrize(
    ("ours", "then", "alive"),
    [
        (lambda table: changes.append(table, rows(4)), Planned.rewrite, [1, 2, 3, 4]),
        (lambda table: changes.append(table, rows(4)), Planned.delete, [1, 3, 4]),
        (delete_key, lambda planned: planned.rewrite(keep_sequence=True), [2, 3]),
        (delete_key, Planned.delete, [3]),
        (rewrite_manifests, Planned.rewrite, [1, 2, 3]),
        (rewrite_manifests, Planned.delete, [1, 3]),
    ],
    ids=["append, rewrite", "append, delete", "key, rewrite", "key, delete", "manifests, rewrite", "manifests, delete"],
)
def test_java_commits_what_does_not_conflict(
    shared: SharedTable, version: int, ours: Make, then: Callable[[Planned], None], alive: list[int]
) -> None:
    begin(shared, version)
    planned = Planned(shared)
    add(shared, ours)
    then(planned)
    assert sorted(changes.rows(shared.load(), ["id"])["id"].to_pylist()) == alive
    assert sorted(row["id"] for row in shared.sql("select id from {t}")) == alive
