"""A change of a table as data, and what can become of it."""

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
"""Where the rows of replaced files went: runs of `length` neighbouring rows of data file `source`, from `position` on, lie
in the new data file `target` from `target_position` on. Rows in no run were left out."""


def new_snapshot_id() -> int:
    """A random snapshot id, as the specification suggests."""
    return random_id()


def no_files() -> pl.DataFrame:
    return pl.DataFrame(schema=FILE_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedStep:
    """A step of something that may be tried again, by its number: it is taken only if neither it nor a later one was. The
    table's property tells the last one that was."""

    property: str
    number: int

    @staticmethod
    def last(metadata: TableMetadata, property_: str) -> int | None:
        """The last step that was taken."""
        told = metadata.properties.get(property_, "")
        return int(told) if told.isdigit() else None

    def is_done(self, metadata: TableMetadata) -> bool:
        last = self.last(metadata, self.property)
        return last is not None and last >= self.number


@dataclass(frozen=True, kw_only=True, eq=False)
class Change:
    """What is to become of a table, in one snapshot.

    Its snapshot id is chosen here, before anything happens: whoever commits the same change again, after a crash or a lost
    answer, finds out whether it was committed, and never commits it twice.
    """

    start: int | None
    """The snapshot it was planned on; None when the table had none."""
    add: tuple[NewFile, ...] = ()
    remove: pl.DataFrame = field(default_factory=no_files)
    """Rows of a file list. Their `manifest_path` is where to look first."""
    rewrites: bool = False
    """A promise: the table has the same rows before and after. It must be proved."""
    converts: bool = False
    """A rewrite whose equality deletes to remove were asked about all data they hit at `start`: the rows they delete are
    named by the position deletes or vectors it adds, or there were none."""
    proof: Proof | None = None
    row_map: pl.DataFrame | pl.LazyFrame | None = None
    """As ROW_MAP_SCHEMA. With it, deletes that arrive during a rewrite are moved over to the new files. A lazy one is for
    maps of files, and larger than memory: only its counts are checked."""
    alone: bool = False
    """Only if nobody committed to the branch since `start`, or since `looked_at`."""
    looked_at: int | None = None
    """A later snapshot than `start`, on which whoever makes the change found that it still fits."""
    empty: bool = False
    """A snapshot without files, which takes a sequence number and does nothing else."""
    once: NumberedStep | None = None
    branch: str = "main"
    set_properties: Mapping[str, str] = field(default_factory=dict)
    remove_properties: tuple[str, ...] = ()
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    statistics: tuple[StatisticsFile, ...] = ()
    snapshot_id: int = field(default_factory=new_snapshot_id)

    def __post_init__(self) -> None:
        if not (self.changes_files or self.set_properties or self.remove_properties or self.statistics):
            raise UsageError("the change is empty", hint="Give files to add or remove, properties or statistics.")
        if self.empty and (self.add or self.remove.height):
            raise UsageError("a change that is empty by intent adds and removes files")
        if "operation" in self.snapshot_properties:
            raise UsageError("the operation of a snapshot follows from the change and cannot be set")
        if self.once is not None:
            done = {self.once.property: str(self.once.number)}
            object.__setattr__(self, "set_properties", {**self.set_properties, **done})
        self._take_listed_files()
        _refuse_twice("added", [(file.path, file.content_offset) for file in self.add])
        if self.remove.select(FILE_IDENTITY).is_duplicated().any():
            path = self.remove.filter(pl.struct(FILE_IDENTITY).is_duplicated())["file_path"][0]
            raise UsageError(f"the change removes a file twice: {path}", file=path)
        both = {file.path for file in self.added_data} & set(self.remove["file_path"])
        if both:
            raise UsageError(f"the change adds and removes the same file: {min(both)}", file=min(both))
        for file in self.add:
            _check_file(file)
        self._check_references()
        if self.rewrites:
            self._check_rewrite()
        elif self.converts:
            raise UsageError("a change that converts deletes keeps all rows: rewrites=True")
        if self.row_map is not None:
            brought = self.proof.rows_from_changes if self.proof else 0
            _check_row_map(self.row_map, self.removed_data, self.added_data, brought)

    def _take_listed_files(self) -> None:
        """Keep of the files to remove what a file list says of them."""
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
                    hint="Leave one of both out.",
                )
        _refuse_twice("given a deletion vector", [file.referenced_data_file for file in self.add if file.is_vector])

    def _check_rewrite(self) -> None:
        if self.remove.is_empty():
            raise UsageError("a rewrite must remove files", hint="Without any it is an append or a delete: rewrites=False.")
        if self.added_data and self.removed_data.is_empty():
            raise UsageError("a rewrite adds data files but replaces none", hint="New rows are an append: rewrites=False.")
        if self.removed_data.height and self.proof is None:
            raise UsageError(
                "a rewrite of data files needs its proof",
                hint="Give Proof(rows_in=…, rows_deleted=…, rows_out=…) as counted while rewriting.",
            )

    @property
    def changes_files(self) -> bool:
        """True when it makes a snapshot; a change of properties or statistics alone makes none."""
        return bool(self.add) or self.remove.height > 0 or self.empty

    @property
    def is_append(self) -> bool:
        """True when it does nothing to files but add new rows: it fits any state of the table."""
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
        """What the snapshot says it did; readers of changes and other writers' validation go by it."""
        if self.rewrites:
            new = {file.path for file in self.added_data}
            for_others = any(file.referenced_data_file not in new for file in self.added_deletes)
            # Iceberg Java overlooks deletes that a `replace` adds to files it is itself rewriting.
            return Operation.OVERWRITE if for_others else Operation.REPLACE
        if not self.added_data and not self.empty:
            return Operation.DELETE
        return Operation.OVERWRITE if self.added_deletes or self.remove.height else Operation.APPEND


@dataclass(frozen=True, kw_only=True)
class ManifestRewrite:
    """Sort the entries of manifests by partition and put them into manifests of the right size; files stay as they are.

    `manifests` are paths; None means all. One that is gone by the time of the commit is left out.
    """

    manifests: frozenset[str] | None = None
    branch: str = "main"
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: int = field(default_factory=new_snapshot_id)


def mergeable_manifests(manifests: Sequence[ManifestRef], properties: Mapping[str, str]) -> list[str]:
    """The manifests that are too small and have company: merging them leaves fewer."""
    target = positive_property(properties, "commit.manifest.target-size-bytes", MANIFEST_TARGET_BYTES)
    small: dict[tuple[int, int], list[ManifestRef]] = {}
    for manifest in manifests:
        entries = (manifest.added_files or 0) + (manifest.existing_files or 0)
        if manifest.length < target / 2 and entries < MAX_ENTRIES / 2:
            small.setdefault((manifest.spec_id, manifest.content), []).append(manifest)
    return [manifest.path for group in small.values() if len(group) > 1 for manifest in group]


@dataclass(frozen=True, kw_only=True)
class Committed:
    """It is in the table. `snapshot_id` is None when no snapshot was needed."""

    snapshot_id: int | None
    metadata: TableMetadata
    attempts: int
    rebased_rows: int = 0
    """Rows whose deletes arrived during a rewrite and were moved over to the new files."""
    unused_files: tuple[str, ...] = ()
    """Puffin files of the change that this snapshot does not need, because their vectors were merged with others. Whoever
    wrote them knows whether something else does."""


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Others kept committing first. Nothing was changed; the same change may be tried again later."""

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
    """It cannot be applied to the table as it is now. Nothing was changed; plan anew."""

    code: RejectedCode
    reason: str
    hint: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    has_landed: bool = False
    """Whether it was in the table and rolled back since. A snapshot needs its files then, although no branch has it."""


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """The catalog did not say whether it took the commit. Nothing was deleted. Commit the same change again to find out."""

    snapshot_id: int | None
    reason: str
    attempts: int


Outcome = Committed | Conflict | Rejected | Unknown


def _refuse_twice(what: str, names: Iterable[Any]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            path = name[0] if isinstance(name, tuple) else name
            raise UsageError(f"a file is {what} twice by one change: {path}", file=path)
        seen.add(name)


def _check_row_map(
    row_map: pl.DataFrame | pl.LazyFrame, removed: pl.DataFrame, added: Sequence[NewFile], brought: int
) -> None:
    """Every row of a new file comes from one row of a replaced file, but for those that were brought from elsewhere. A
    delete would be lost otherwise."""
    schema = row_map.collect_schema()
    if dict(schema) != dict(ROW_MAP_SCHEMA):
        raise UsageError(f"row map has the columns {schema}", hint=f"It needs {ROW_MAP_SCHEMA}.")
    runs = row_map.lazy()
    is_bad = pl.any_horizontal(pl.all().is_null()) | (pl.col("length") < 1) | (pl.col("position") < 0)
    if runs.filter(is_bad).head(1).collect().height:
        raise UsageError("row map has empty runs, negative positions or nulls")
    pairs = runs.group_by("source", "target").agg(pl.col("length").sum()).collect(engine="streaming")
    sources = set(pairs["source"].unique()) - set(removed["file_path"])
    if sources:
        raise UsageError(f"row map names a file that the change does not remove: {min(sources)}")
    counted = dict(pairs.group_by("target").agg(pl.col("length").sum()).iter_rows())
    expected = {file.path: file.record_count for file in added}
    for path in counted.keys() | expected.keys():
        lacking = expected.get(path, -1) - counted.get(path, 0)
        brought -= lacking
        if lacking < 0 or brought < 0:
            has = f"has {expected[path]}" if path in expected else "is not added"
            raise UsageError(f"row map leads {counted.get(path, 0)} rows to a file that {has}: {path}", file=path)
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
            hint="An older one would not hit the rows.",
            file=file.path,
        )
    if file.content not in (DATA, POSITION_DELETES, EQUALITY_DELETES):
        raise UsageError(f"file of unknown content {file.content}: {file.path}", file=file.path)
    located = (file.content_offset, file.content_size_bytes, file.referenced_data_file)
    if file.is_vector and None in located:
        raise UsageError(
            f"deletion vector without offset, size or the data file it is about: {file.path}",
            hint="pyarctic.iceberg.write.write_vectors gives all of them.",
            file=file.path,
        )
