"""A catalog over SQLite whose every call and file can fail, and changes of every kind to try it with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.commit import Change, ManifestRewrite
from tests.faults.spoiled import WrappedOutput
from tests.support import changes
from tests.support.integrity import on_disk
from tests.support.metadata_files import edited, point, upgraded

Point = tuple[str, str]
"""What happens and when: ("write of manifest", "half"), ("commit", "after")."""
Trap = Callable[[Point], None]
Content = frozenset[tuple[int, int]]

NAME = "lab"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", IntegerType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}

Kind = Literal["append", "position-delete", "equality-delete", "upsert", "rewrite", "rebase", "manifests", "properties"]
KINDS: tuple[Kind, ...] = (
    "append",
    "position-delete",
    "equality-delete",
    "upsert",
    "rewrite",
    "rebase",
    "manifests",
    "properties",
)


class Killed(BaseException):
    """The process is dead: nothing it holds is cleaned up by it."""


@dataclass(eq=False)
class Trapped(FileIO):
    """Files of a table; every write and delete first asks the trap."""

    inner: FileIO
    trap: Trap
    properties: dict[str, str] = field(default_factory=dict)

    def new_input(self, location: str) -> InputFile:
        return self.inner.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        return _TrappedOutput(location, self.inner.new_output(location), self.trap)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        name = location if isinstance(location, str) else location.location
        self.trap((f"delete of {file_kind(name)}", "before"))
        self.inner.delete(location)


class _TrappedOutput(WrappedOutput):
    def __init__(self, location: str, inner: OutputFile, trap: Trap) -> None:
        super().__init__(location, inner)
        self._trap = trap

    def create(self, overwrite: bool = False) -> OutputStream:
        what = f"write of {file_kind(self.location)}"
        self._trap((what, "before"))
        return _TrappedStream(self._inner.create(overwrite), what, self._trap)


class _TrappedStream:
    """Half of the bytes are on the disk when the trap is asked for the second time."""

    closed = False

    def __init__(self, inner: OutputStream, what: str, trap: Trap) -> None:
        self._inner: Any = inner
        self._what = what
        self._trap = trap
        self._asked = False

    def write(self, data: bytes) -> int:
        data = bytes(data)
        half = 0
        if not self._asked and len(data) > 1:
            self._asked = True
            half = len(data) // 2
            self._inner.write(data[:half])
            self._inner.flush()
            self._trap((self._what, "half"))
        return half + int(self._inner.write(data[half:]) or 0)

    def tell(self) -> int:
        return int(self._inner.tell())

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._inner.close()

    def __enter__(self) -> _TrappedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def file_kind(path: str) -> str:
    name = Path(path).name
    if name.endswith(".metadata.json"):
        return "metadata"
    if name.endswith(".avro"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    return "delete file" if "-deletes" in name else "data file"


class TrappedCatalog(SqlCatalog):
    """A catalog that asks the trap before each call and after a commit, and gives trapped files."""

    trap: Trap = staticmethod(lambda _: None)

    def load_table(self, identifier: Any) -> Table:
        self.trap(("load", "before"))
        return super().load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        self.trap(("commit", "before"))
        response = super().commit_table(table, requirements, updates)
        self.trap(("commit", "after"))
        return response

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> FileIO:
        return Trapped(super()._load_file_io(properties or {}, location), self._ask)

    def _ask(self, point: Point) -> None:
        self.trap(point)  # the one that is set now, not when the file was opened


@dataclass(frozen=True)
class Lab:
    """One SQLite catalog. Tables in it are new for every case."""

    folder: Path
    catalog: SqlCatalog
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @contextmanager
    def trapped(self, trap: Trap) -> Iterator[TrappedCatalog]:
        """Another client of the catalog, with a trap."""
        catalog = TrappedCatalog(NAME, **_properties(self.folder))
        catalog.trap = trap
        try:
            yield catalog
        finally:
            catalog.close()

    def table(self, version: int = 2, **properties: str) -> Table:
        """Two partitions, two data files each, one deleted row in each partition."""
        table = self.empty(version, **properties)
        for first in (0, 10):
            data = some_rows(*range(first, first + 6))
            table = changes.apply(table, partial(changes.append, data=data))
        return changes.apply(table, lambda t: changes.position_delete(t, "id in (0, 1)"))

    def empty(self, version: int = 2, **properties: str) -> Table:
        told = {"format-version": str(version), **QUICK, **properties}
        name = f"db.t{next(self._numbers)}"
        return self.catalog.create_table(name, SCHEMA, partition_spec=SPEC, properties=told)

    def loaded(self, table: Table) -> Table:
        return self.catalog.load_table(table.name())

    def upgrade(self, table: Table) -> None:
        """To format version 3, as another engine would do it."""
        edited(self.loaded(table), upgraded)

    def rewind(self, table: Table, keep: Collection[str]) -> None:
        """Bring the table back to the state that was loaded, with these files. What a commit deleted stays deleted."""
        point(table, table.metadata_location)
        for path in on_disk(table) - set(keep):
            Path(path).unlink()


@contextmanager
def opened(folder: Path) -> Iterator[Lab]:
    """The lab in a folder, which may have it already."""
    apply_patches()
    catalog = SqlCatalog(NAME, **_properties(folder))
    catalog.create_namespace_if_not_exists("db")
    try:
        yield Lab(folder, catalog)
    finally:
        catalog.close()


def _properties(folder: Path) -> dict[str, str]:
    return {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()}


def some_rows(*ids: int) -> pa.Table:
    """Rows of both partitions, by parity."""
    return pa.table({"id": pa.array(ids, pa.int64()), "part": pa.array([i % 2 for i in ids], pa.int32())})


def content(table: Table) -> Content:
    """The rows as our scan finds them; none twice."""
    found = [(row["id"], row["part"]) for row in changes.rows(table).to_pylist()]
    assert len(set(found)) == len(found)
    return frozenset(found)


def make_change(table: Table, kind: Kind) -> Change | ManifestRewrite:
    """A change of `Lab.table`, planned on it as it is now. For "rebase", rows of the replaced files die right after."""
    match kind:
        case "append":
            return changes.append(table, some_rows(100, 101))
        case "position-delete":
            return there(changes.position_delete(table, "id in (2, 3, 12)"))
        case "equality-delete":
            return changes.equality_delete(table, some_rows(2, 14), (0,))
        case "upsert":
            return upsert(table, 3, 103)
        case "rewrite":
            return changes.rewrite(table)
        case "rebase":
            change = changes.rewrite(table)
            changes.apply(table, lambda t: changes.position_delete(t, "id in (4, 11)"))
            return change
        case "manifests":
            return ManifestRewrite()
        case "properties":
            return Change(start=changes.head(table), set_properties={"owner": "nobody"})


def upsert(table: Table, *ids: int) -> Change:
    """Odd ids only: their older rows die, new ones come."""
    data = some_rows(*ids)
    deletes = changes.equality_delete(table, data.select(["id"]), (1,))
    return Change(start=changes.head(table), add=(*changes.write_data(table, data), *deletes.add))


def there(change: Change | None) -> Change:
    assert change is not None
    return change
