"""Changes of a table as data, and the outcomes of committing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import polars as pl
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.statistics import StatisticsFile

from pyarctic.errors import UsageError
from pyarctic.iceberg.commit.proof import Proof
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY, IS_DATA
from pyarctic.iceberg.manifest.reader import DATA, EQUALITY_DELETES, FILE_SCHEMA, POSITION_DELETES, ManifestRef
from pyarctic.iceberg.write.manifest.manifest_files import MANIFEST_TARGET_BYTES, MAX_ENTRIES
from pyarctic.iceberg.write.new_file import NewFile, random_id
from pyarctic.iceberg.write.properties import positive_property

ROW_MAP_SCHEMA = pl.Schema(
    {"source": pl.String, "position": pl.Int64, "length": pl.Int64, "target": pl.String, "target_position": pl.Int64}
)
"""Where the rows of replaced files are now: each run of `length` consecutive rows of data file `source`, starting at
`position`, is in the new data file `target`, starting at `target_position`. Rows in no run were not rewritten."""


def no_files() -> pl.DataFrame:
    """An empty file list."""
    return pl.DataFrame(schema=FILE_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedStep:
    """A numbered step of a process that may be retried, such as a streaming batch: it is committed only if neither it nor a
    later step was. A table property records the last committed step."""

    property: str
    number: int

    @staticmethod
    def last(metadata: TableMetadata, property_: str) -> int | None:
        """The number of the last committed step."""
        value = metadata.properties.get(property_, "")
        return int(value) if value.isdigit() else None

    def is_done(self, metadata: TableMetadata) -> bool:
        """Whether this step or a later one was committed."""
        last = self.last(metadata, self.property)
        return last is not None and last >= self.number


@dataclass(frozen=True, kw_only=True, eq=False)
class Change:
    """A change of a table in one snapshot: files to add and remove, properties, statistics.

        Change(start=snapshot_id, add=(new_file,))

    Its snapshot id is chosen here, before the commit: committing the same change again, after a crash or a lost response,
    finds out whether it was committed, and never commits it twice.
    """

    start: int | None
    """The snapshot it was planned on; None if the table had none."""
    add: tuple[NewFile, ...] = ()
    remove: pl.DataFrame = field(default_factory=no_files)
    """Rows of a file list. Their `manifest_path` is searched first."""
    rewrites: bool = False
    """The table has the same rows before and after. This needs a `proof`."""
    converts: bool = False
    """A rewrite that removes equality deletes after applying them to all data files at `start`: the rows they delete are
    named by the position deletes or vectors it adds, or there were none."""
    proof: Proof | None = None
    row_map: pl.DataFrame | pl.LazyFrame | None = None
    """As ROW_MAP_SCHEMA. With it, deletes that are committed during a rewrite are translated to the new files. A lazy frame
    may be larger than memory: only its counts are checked."""
    alone: bool = False
    """Commit only if there was no other commit to the branch since `start`, or since `checked_at`."""
    checked_at: int | None = None
    """A later snapshot than `start`, for which the caller has checked that the change still applies."""
    requires: tuple[int, ...] = ()
    """Later snapshots than `start` that must be in the history of the branch: the change relies on what they did. A catalog
    may have dropped one in favour of another writer. One that was expired is in the history, too."""
    empty: bool = False
    """A snapshot without files, which only takes a sequence number."""
    recounts: bool = False
    """Count the totals of the summary from all live files, instead of adding to those of the parent, which may be wrong."""
    once: NumberedStep | None = None
    """Commit only if this step was not committed before."""
    branch: str = "main"
    set_properties: Mapping[str, str] = field(default_factory=dict)
    remove_properties: tuple[str, ...] = ()
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    statistics: tuple[StatisticsFile, ...] = ()
    snapshot_id: int = field(default_factory=random_id)
    written_for: int | None = None
    """The snapshot that the names of its metadata files tell; None: its own. So whoever cleans up after a commit also finds
    what was written to end it."""

    def __post_init__(self) -> None:
        self._check_has_content()
        if self.once is not None:
            last_step = {self.once.property: str(self.once.number)}
            object.__setattr__(self, "set_properties", {**self.set_properties, **last_step})
        self._normalize_removed_files()
        self._check_distinct_files()
        for file in self.add:
            _check_file(file)
        self._check_references()
        self._check_rewrite()
        if self.row_map is not None:
            rows_from_changes = self.proof.rows_from_changes if self.proof else 0
            _check_row_map(self.row_map, self.removed_data, self.added_data, rows_from_changes)

    def _check_has_content(self) -> None:
        if not (self.changes_files or self.set_properties or self.remove_properties or self.statistics):
            raise UsageError("the change is empty", hint="Give files to add or remove, properties or statistics.")
        if self.empty and (self.add or self.remove.height):
            raise UsageError("a change with empty=True must not add or remove files")
        if "operation" in self.snapshot_properties:
            raise UsageError("the operation of a snapshot follows from the change and cannot be set")

    def _check_distinct_files(self) -> None:
        _refuse_duplicates("added", [(file.path, file.content_offset) for file in self.add])
        if self.remove.select(FILE_IDENTITY).is_duplicated().any():
            path = self.remove.filter(pl.struct(FILE_IDENTITY).is_duplicated())["file_path"][0]
            raise UsageError(f"the change removes a file twice: {path}", file=path)
        both = {file.path for file in self.added_data} & set(self.remove["file_path"])
        if both:
            raise UsageError(f"the change adds and removes the same file: {min(both)}", file=min(both))

    def _normalize_removed_files(self) -> None:
        """Reduce the files to remove to the columns of a file list."""
        missing = [name for name in FILE_SCHEMA if name not in self.remove.columns]
        if missing:
            raise UsageError(f"files to remove lack the columns {missing}", hint="Take them from Table.file_list.frame().")
        try:
            listed = self.remove.select(FILE_SCHEMA.names()).cast(FILE_SCHEMA)
        except pl.exceptions.PolarsError as cause:
            raise UsageError(
                f"files to remove are not those of a file list: {cause}", hint="Take them from Table.file_list.frame()."
            ) from cause
        object.__setattr__(self, "remove", listed)

    def _check_references(self) -> None:
        removed = set(self.removed_data["file_path"])
        for file in self.added_deletes:
            if file.referenced_data_file in removed:
                raise UsageError(
                    f"the change removes data file {file.referenced_data_file} and adds deletes for it",
                    file=file.path,
                    hint="Omit one of both.",
                )
        _refuse_duplicates("given a deletion vector", [file.referenced_data_file for file in self.add if file.is_vector])

    def _check_rewrite(self) -> None:
        if not self.rewrites:
            if self.converts:
                raise UsageError("a change that converts deletes keeps all rows: rewrites=True")
            return
        if self.remove.is_empty():
            raise UsageError("a rewrite must remove files", hint="An append or a delete has rewrites=False.")
        if self.added_data and self.removed_data.is_empty():
            raise UsageError("a rewrite adds data files but replaces none", hint="New rows are an append: rewrites=False.")
        if self.removed_data.height and self.proof is None:
            raise UsageError(
                "a rewrite of data files needs a proof",
                hint="Give Proof(rows_in=…, rows_deleted=…, rows_out=…) as counted while rewriting.",
            )

    @property
    def names_of(self) -> int:
        """The snapshot that the names of its files tell."""
        return self.snapshot_id if self.written_for is None else self.written_for

    @property
    def changes_files(self) -> bool:
        """Whether it makes a snapshot; a change of properties or statistics alone makes none."""
        return bool(self.add) or self.remove.height > 0 or self.empty

    @property
    def is_append(self) -> bool:
        """Whether it only adds data files with new rows: then it applies to any state of the table."""
        return not self.remove.height and all(f.content == DATA and f.data_sequence_number is None for f in self.add)

    @cached_property
    def added_data(self) -> list[NewFile]:
        return [file for file in self.add if file.content == DATA]

    @cached_property
    def added_deletes(self) -> list[NewFile]:
        return [file for file in self.add if file.content != DATA]

    @cached_property
    def removed_data(self) -> pl.DataFrame:
        return self.remove.filter(IS_DATA)

    @cached_property
    def removed_deletes(self) -> pl.DataFrame:
        return self.remove.filter(~IS_DATA)

    @property
    def operation(self) -> Operation:
        """The operation of the snapshot, which incremental readers and the validation of other writers depend on."""
        if self.rewrites:
            new_paths = {file.path for file in self.added_data}
            deletes_from_existing = any(file.referenced_data_file not in new_paths for file in self.added_deletes)
            # Iceberg Java overlooks deletes that a `replace` adds to files it is itself rewriting.
            return Operation.OVERWRITE if deletes_from_existing else Operation.REPLACE
        if not self.added_data and not self.empty:
            return Operation.DELETE
        return Operation.OVERWRITE if self.added_deletes or self.remove.height else Operation.APPEND


@dataclass(frozen=True, kw_only=True)
class ManifestRewrite:
    """Sort the entries of manifests by partition and write them into manifests of the right size; the files of the table do
    not change.

    `manifests` are paths; None means all. Those that are not in the table at the time of the commit are ignored.
    """

    manifests: frozenset[str] | None = None
    branch: str = "main"
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: int = field(default_factory=random_id)

    @property
    def names_of(self) -> int:
        """The snapshot that the names of its files tell."""
        return self.snapshot_id


def mergeable_manifests(manifests: Sequence[ManifestRef], properties: Mapping[str, str]) -> list[str]:
    """The paths of small manifests that can be merged with others of their spec and content."""
    target = positive_property(properties, "commit.manifest.target-size-bytes", MANIFEST_TARGET_BYTES)
    small: dict[tuple[int, int], list[ManifestRef]] = {}
    for manifest in manifests:
        entries = (manifest.added_files or 0) + (manifest.existing_files or 0)
        if manifest.length < target / 2 and entries < MAX_ENTRIES / 2:
            small.setdefault((manifest.spec_id, manifest.content), []).append(manifest)
    return [manifest.path for group in small.values() if len(group) > 1 for manifest in group]


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The change is in the table. `snapshot_id` is None if no snapshot was needed."""

    snapshot_id: int | None
    metadata: TableMetadata
    attempts: int
    rebased_rows: int = 0
    """Rows that were deleted during a rewrite and whose deletes were translated to the new files."""
    unused_files: tuple[str, ...] = ()
    """Puffin files of the change that this snapshot does not need, because their vectors were merged with others. The caller
    may remove them if nothing else needs them."""


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Concurrent commits came first in all attempts. Nothing was changed; the same change may be committed again later."""

    reason: str
    attempts: int


RejectedCode = Literal[
    "not-live",
    "files-gone",
    "deletes-arrived",
    "still-needed",
    "history-lost",
    "format",
    "mismatch",
    "proof",
    "added-twice",
    "replaced-table",
    "moved",
    "done-already",
]


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """The change cannot be applied to the current state of the table. Nothing was changed; plan it again."""

    code: RejectedCode
    reason: str
    hint: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    may_have_landed: bool = False
    """Whether the change was committed and rolled back since, or may have been committed to a table that lost its name. A
    snapshot may need its files then, so that they must not be removed."""


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """The outcome of the commit is not known. Nothing was deleted. Commit the same change again to find out."""

    snapshot_id: int | None
    reason: str
    attempts: int


Outcome = Committed | Conflict | Rejected | Unknown


def _refuse_duplicates(action: str, keys: Iterable[Any]) -> None:
    seen = set()
    for key in keys:
        if key in seen:
            path = key[0] if isinstance(key, tuple) else key
            raise UsageError(f"a file is {action} twice by one change: {path}", file=path)
        seen.add(key)


def _check_row_map(
    row_map: pl.DataFrame | pl.LazyFrame, removed: pl.DataFrame, added: Sequence[NewFile], rows_from_changes: int
) -> None:
    """Check that every row of a new file comes from one row of a replaced file, except rows from changes. A delete would be
    lost otherwise."""
    schema = row_map.collect_schema()
    if dict(schema) != dict(ROW_MAP_SCHEMA):
        raise UsageError(f"row map has the columns {schema}", hint=f"It needs {ROW_MAP_SCHEMA}.")
    runs = row_map.lazy()
    is_bad = pl.any_horizontal(pl.all().is_null()) | (pl.col("length") < 1) | (pl.col("position") < 0)
    if runs.filter(is_bad).head(1).collect().height:
        raise UsageError("row map has empty runs, negative positions or nulls")
    pairs = runs.group_by("source", "target").agg(pl.col("length").sum()).collect(engine="streaming")
    unknown_sources = set(pairs["source"].unique()) - set(removed["file_path"])
    if unknown_sources:
        raise UsageError(f"row map names a file that the change does not remove: {min(unknown_sources)}")
    counted = dict(pairs.group_by("target").agg(pl.col("length").sum()).iter_rows())
    expected = {file.path: file.record_count for file in added}
    for path in counted.keys() | expected.keys():
        unmapped = expected.get(path, -1) - counted.get(path, 0)
        rows_from_changes -= unmapped
        if unmapped < 0 or rows_from_changes < 0:
            state = f"has {expected[path]}" if path in expected else "is not added"
            raise UsageError(f"row map leads {counted.get(path, 0)} rows to a file that {state}: {path}", file=path)
    if isinstance(row_map, pl.LazyFrame):
        return
    for file, start in (("source", "position"), ("target", "target_position")):
        ordered = row_map.sort(file, start)
        overlaps = (pl.col(start) + pl.col("length") > pl.col(start).shift(-1)) & (pl.col(file) == pl.col(file).shift(-1))
        if ordered.filter(overlaps).height:
            raise UsageError(f"row map has runs that overlap in {ordered.filter(overlaps)[file][0]}")


def _check_file(file: NewFile) -> None:
    if file.record_count < 0 or file.file_size_bytes < 0:
        raise UsageError(f"file with negative rows or size: {file.path}", file=file.path)
    if file.content == EQUALITY_DELETES and not file.equality_ids:
        raise UsageError(f"equality delete file without key columns: {file.path}", file=file.path)
    if file.content != EQUALITY_DELETES and file.equality_ids:
        raise UsageError(f"only equality delete files have key columns: {file.path}", file=file.path)
    if file.content == POSITION_DELETES and file.data_sequence_number is not None:
        raise UsageError(
            f"position deletes take the sequence number of their commit: {file.path}",
            hint="With an older one they would not apply to the rows.",
            file=file.path,
        )
    if file.content not in (DATA, POSITION_DELETES, EQUALITY_DELETES):
        raise UsageError(f"file of unknown content {file.content}: {file.path}", file=file.path)
    location = (file.content_offset, file.content_size_bytes, file.referenced_data_file)
    if file.is_vector and None in location:
        raise UsageError(
            f"deletion vector without offset, size or the data file it references: {file.path}",
            hint="pyarctic.iceberg.write.write_vectors sets all of them.",
            file=file.path,
        )
