"""The handle that library, command line and Spark share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import polars as pl
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate
from pyiceberg.types import IcebergType

from pyarctic.config import TableName
from pyarctic.config.table_properties import check_properties
from pyarctic.errors import Conflict, Rejected, Unavailable, UsageError, about
from pyarctic.iceberg.catalog import translate_catalog_errors
from pyarctic.iceberg.commit import Change, Committed, ManifestRewrite, NumberedStep, Outcome, commit, mergeable_manifests
from pyarctic.iceberg.manifest import CONTENT_KIND, FileList, ManifestReader, PartitionDecoder, snapshot_by_id
from pyarctic.iceberg.read import TableView, arrow_schema, plan_scan
from pyarctic.tables.commit_outcomes import ManifestReport, remove_outputs, require_committed
from pyarctic.tables.describe import snapshot_frame, table_facts
from pyarctic.tables.evolve import Evolution, evolve
from pyarctic.tables.format.file_names import Store
from pyarctic.tables.format.store_properties import TableKind, check_user_properties, kind_of, store_of
from pyarctic.tables.snapshots import resolve_snapshot
from pyarctic.tables.write.base_writer import parse_overwrite_scope
from pyarctic.tables.write.prepared import PreparedWrite, UnkeyedWrite

_ATTEMPTS = 10
CONTENT_KINDS = ("data", "position-deletes", "equality-deletes", "deletion-vector")


class RowScan(Protocol):
    """A prepared read; no row is read before it is asked for, and every call reads anew."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; memory is bounded whatever the size of the table."""
        ...

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        ...

    def count(self) -> int:
        """The number of rows."""
        ...


class Table:
    """A table at the moment it was opened. `refresh` moves to its newest state; file lists are kept and grow."""

    def __init__(self, name: TableName, loaded: IcebergTable) -> None:
        self._name = name
        self._loaded = loaded
        self._files: FileList | None = None

    def __repr__(self) -> str:
        return f"<Table {self.name} ({self.kind}, format v{self.format_version})>"

    @property
    def name(self) -> str:
        return str(self._name)

    @property
    def kind(self) -> TableKind:
        return kind_of(self._loaded.metadata.properties)

    @property
    def store(self) -> Store | None:
        """Which store of a keyed or unkeyed table it is, if any."""
        return store_of(self._loaded.metadata.properties)

    @property
    def uuid(self) -> str:
        return str(self._loaded.metadata.table_uuid)

    @property
    def location(self) -> str:
        return self._loaded.metadata.location

    @property
    def format_version(self) -> int:
        return self._loaded.metadata.format_version

    @property
    def schema(self) -> Schema:
        return self._loaded.metadata.schema()

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns as scans give them."""
        return arrow_schema(self.schema.fields)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The identifier fields, by name; empty when the table declares none."""
        names = (self.schema.find_column_name(field_id) for field_id in sorted(self.schema.identifier_field_ids))
        return tuple(name for name in names if name is not None)

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._loaded.metadata.properties)

    @property
    def view(self) -> TableView:
        """Metadata and storage as of now: what the writers of `pyarctic.iceberg.write` need."""
        return TableView(name=self.name, metadata=self._loaded.metadata, io=self._loaded.io)

    @property
    def file_list(self) -> FileList:
        """The live files as commits and plans take them; `files` shows them to people."""
        with about(table=self.name):
            return self._file_list(self._loaded.metadata.current_snapshot())

    def reader(self) -> ManifestReader:
        """A reader of manifests that knows those which were read already."""
        return self._files.reader(self._loaded.io) if self._files else ManifestReader(self._loaded.io)

    def refresh(self) -> Table:
        """Load the newest metadata; returns the table itself."""
        with translate_catalog_errors(self._name.catalog, self.name):
            self._loaded = self._loaded.catalog.load_table(self._loaded.name())
        return self

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
        snapshot_id: int | None = None,
        ref: str | None = None,
        as_of: datetime | None = None,
        *,
        store: str = "merged",
    ) -> RowScan:
        """Rows with all deletes applied, now or at a snapshot, a branch or tag, or a moment."""
        with about(table=self.name):
            if store not in ("merged", "base"):
                raise UsageError(f"a table without a primary key has no store {store!r}", hint="Leave store out.")
            snapshot, schema = resolve_snapshot(self._loaded.metadata, snapshot_id, ref, as_of)
            return plan_scan(
                self.view, snapshot=snapshot, schema=schema, columns=columns, where=where, files=self._file_list(snapshot)
            )

    def files(
        self,
        snapshot_id: int | None = None,
        ref: str | None = None,
        content: str | None = None,
        *,
        store: Store = "base",
    ) -> pl.DataFrame:
        """The live files, data and deletes. `content`: "data", "position-deletes", "equality-deletes" or
        "deletion-vector"."""
        self._refuse_other_store(store)
        if content is not None and content not in CONTENT_KINDS:
            raise UsageError(f"unknown kind of content: {content}", hint=f"One of: {', '.join(CONTENT_KINDS)}.")
        frame = self._listed(snapshot_id, ref)
        if content is not None:
            frame = frame.filter(pl.col("content") == content)
        return self._with_partition_paths(frame)

    def partitions(self, snapshot_id: int | None = None, ref: str | None = None) -> pl.DataFrame:
        """One row per partition: how many files of which kind, how large."""
        is_data = pl.col("content") == "data"

        def count(kind: str) -> pl.Expr:
            return (pl.col("content") == kind).sum().cast(pl.Int64)

        grouped = (
            self._listed(snapshot_id, ref)
            .group_by("partition", "spec_id")
            .agg(
                data_files=count("data"),
                records=pl.col("record_count").filter(is_data).sum(),
                data_bytes=pl.col("file_size_bytes").filter(is_data).sum(),
                position_delete_files=count("position-deletes"),
                equality_delete_files=count("equality-deletes"),
                deletion_vectors=count("deletion-vector"),
                delete_bytes=pl.coalesce("content_size_bytes", "file_size_bytes").filter(~is_data).sum(),
                smallest_file_bytes=pl.col("file_size_bytes").filter(is_data).min(),
                largest_file_bytes=pl.col("file_size_bytes").filter(is_data).max(),
            )
        )
        return self._with_partition_paths(grouped).sort("spec_id", "partition")

    def snapshots(self, *, store: Store = "base") -> pl.DataFrame:
        """The snapshots there are, oldest first, with the branches and tags that point at them."""
        self._refuse_other_store(store)
        return snapshot_frame(self._loaded.metadata)

    def changes(self, since: int | None = None) -> RowScan:  # noqa: ARG002  # a keyed table's
        """Changes in order: those of keyed tables, no other table keeps them."""
        raise UsageError("a table without a primary key keeps no changes", hint="Its snapshots tell.", table=self.name)

    def _refuse_other_store(self, store: str) -> None:
        if store != "base":
            raise UsageError(
                f"a table without a primary key has no store {store!r}", hint="Leave store out.", table=self.name
            )

    def commit(self, change: Change | ManifestRewrite) -> Committed:
        """Apply a change in one atomic step; afterwards this is the table with it.

        Raises `Conflict`, `Rejected` or `OutcomeUnknown`; only after the last the table may have been changed."""
        with about(table=self.name):
            return require_committed(self.try_commit(change))

    def try_commit(self, change: Change | ManifestRewrite) -> Outcome:
        """The same, with the outcome as a value."""
        with about(table=self.name):
            outcome = commit(self._loaded, change, known=self._files)
        if isinstance(outcome, Committed):
            self._loaded.metadata = outcome.metadata
        return outcome

    def _append(self, **what: Any) -> Committed:
        """Commit a change that fits any state of the table, also when the snapshot it was loaded at was expired since."""
        try:
            return self.commit(Change(start=self.view.snapshot_id, **what))
        except Rejected as refusal:
            if refusal.facts.get("reason") != "history-lost" or "start" not in refusal.facts:
                raise
        self.refresh()
        return self.commit(Change(start=self.view.snapshot_id, **what))

    def _commit_alone(self, plan: Callable[[], Change | None]) -> int | None:
        """Commit a change that must see all of the table it replaces: planned anew whenever somebody else came first."""
        for _ in range(_ATTEMPTS):
            try:
                change = plan()
            except OSError as cause:
                raise Unavailable(
                    f"the commit could not be prepared: {cause}",
                    hint="Nothing was changed. Check the storage, and try again.",
                ) from cause
            if change is None:
                return None
            try:
                return self.commit(change).snapshot_id
            except (Conflict, Rejected, Unavailable) as refusal:
                remove_outputs(self, [file.statistics_path for file in change.statistics], since=change.start)
                if refusal.facts.get("reason") != "moved":
                    raise
            self.refresh()
        raise Conflict(
            f"{_ATTEMPTS} attempts to overwrite lost against other writers", hint="Nothing was changed. Try again."
        )

    def write(
        self,
        data: Any,
        mode: str = "insert",
        *,
        across_partitions: bool = False,
        replace: str = "table",
        where: str | BooleanExpression | None = None,
    ) -> int | None:
        """Write rows by one commit; gives the snapshot (of the change store, or of Base for an overwrite), or None if there
        was nothing to write.

        `mode`: "insert", or "overwrite" to replace rows: all of them, those of the partitions that get rows
        (`replace="partitions"`), or those of the partitions that `where` selects. With a primary key also "upsert", which
        deletes a key before it inserts it; "delete", which needs the key and partition columns only; "cdc", which takes rows
        with `_change_action`. `across_partitions` deletes rows of the same keys in other partitions as well, for upsert and
        delete."""
        with about(table=self.name):
            write = self.prepare_write(mode, across_partitions=across_partitions, replace=replace, where=where)
            return write.rows(data)

    def last_step(self, property_: str) -> int | None:
        """The last numbered step (`NumberedStep`) that was committed to the table, as far as it was loaded."""
        return NumberedStep.last(self._loaded.metadata, property_)

    def prepare_write(
        self,
        mode: str = "insert",
        *,
        across_partitions: bool = False,
        replace: str = "table",
        where: str | BooleanExpression | None = None,
    ) -> PreparedWrite:
        """Check all but the rows of a write: for those who write the files elsewhere."""
        if mode in ("upsert", "delete", "cdc") or across_partitions:
            what = "across_partitions" if across_partitions else f"mode {mode!r}"
            raise UsageError(f"{what} needs a primary key", hint="Without one, rows are inserted or overwritten.")
        if mode not in ("insert", "overwrite"):
            raise UsageError(f"unknown mode: {mode!r}", hint="One of: insert, overwrite.")
        if self.store == "change":
            raise UsageError("this is the change store of a table", hint="Write to the table itself.")
        if mode == "insert" and (where is not None or replace != "table"):
            raise UsageError('mode "insert" replaces nothing', hint='where and replace are for mode="overwrite".')
        scope = parse_overwrite_scope(self._loaded.metadata, replace, where)
        return UnkeyedWrite(self, scope, appends=mode == "insert")

    def evolve(
        self,
        *,
        add: Mapping[str, IcebergType | str] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, IcebergType | str] | None = None,
        optional: Sequence[str] = (),
        describe: Mapping[str, str] | None = None,
    ) -> None:
        """Change the schema. New columns are optional; `widen` takes int to long, float to double, a decimal to more digits;
        `optional` lets required columns be null. Types are Iceberg's, or texts as "decimal(10, 2)"."""
        evolution = Evolution(
            add=add or {}, drop=drop, rename=rename or {}, widen=widen or {}, optional=optional, describe=describe or {}
        )
        with about(table=self.name), translate_catalog_errors(self._name.catalog, self.name):
            self._evolve(evolution)

    def _evolve(self, evolution: Evolution) -> None:
        evolution.check(())
        evolve(self._loaded, evolution)

    def set(self, properties: Mapping[str, str]) -> None:
        """Set table properties."""
        with about(table=self.name):
            told = {str(name): str(value) for name, value in properties.items()}
            check_properties(told)
            if self.kind != "native":
                check_user_properties(told)
            self._change_properties(set_=told)

    def unset(self, *names: str) -> None:
        """Remove table properties; those that are not set are ignored."""
        with about(table=self.name):
            if self.kind != "native":
                check_user_properties(dict.fromkeys(names, "1"))
            self._change_properties(unset=names)

    def _change_properties(self, *, set_: Mapping[str, str] | None = None, unset: Sequence[str] = ()) -> None:
        if unset:  # somebody else may have set them
            self.refresh()
        known = [name for name in unset if name in self.properties]
        if set_ or known:
            change = Change(start=self.view.snapshot_id, set_properties=set_ or {}, remove_properties=tuple(known))
            self.commit(change)

    def roll_back(self, to: int) -> None:
        """Make a former snapshot of the main branch the current one. Nobody else's commit is lost: if the branch has moved
        since this table was loaded, it raises `Conflict`."""
        loaded, head = self._loaded, self.view.snapshot_id
        snapshot_by_id(loaded.metadata, to)
        ref = loaded.metadata.refs[MAIN_BRANCH]
        updates = (
            SetSnapshotRefUpdate.model_validate(
                {
                    "ref-name": MAIN_BRANCH,
                    "type": SnapshotRefType.BRANCH,
                    "snapshot-id": to,
                    "max-ref-age-ms": ref.max_ref_age_ms,
                    "max-snapshot-age-ms": ref.max_snapshot_age_ms,
                    "min-snapshots-to-keep": ref.min_snapshots_to_keep,
                }
            ),
        )
        requirements = (
            AssertTableUUID(uuid=loaded.metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": head}),
        )
        try:
            with translate_catalog_errors(self._name.catalog, self.name):
                response = loaded.catalog.commit_table(loaded, requirements, updates)
        except CommitFailedException as error:
            raise Conflict(
                "somebody committed in the meantime", hint="Nothing was changed. Look at the table and try again."
            ) from error
        loaded.metadata = response.metadata

    def rewrite_manifests(self, *, everything: bool = False, dry_run: bool = False) -> ManifestReport:
        """Merge small manifests and sort their entries by partition, so that planners read less; data stays as it is.

        `everything` rewrites the large ones as well. Nothing is committed when there is nothing to gain."""
        with about(table=self.name):
            before = ManifestReader(self._loaded.io).manifests(self._loaded.metadata.current_snapshot())
            chosen = [m.path for m in before] if everything else mergeable_manifests(before, self.properties)
        snapshot_id = after = None
        if chosen and not dry_run:
            done = self.commit(ManifestRewrite(manifests=frozenset(chosen)))
            snapshot_id = done.snapshot_id
            after = len(ManifestReader(self._loaded.io).manifests(self._loaded.metadata.current_snapshot()))
        return ManifestReport(
            table=self.name,
            snapshot_id=snapshot_id,
            rewritten=len(chosen),
            manifests_before=len(before),
            manifests_after=after,
        )

    def summary(self) -> dict[str, Any]:
        """Everything worth knowing at a glance, ready for JSON."""
        facts = {"name": self.name, "kind": self.kind, "primary_key": list(self.primary_key)}
        return table_facts(self._loaded.metadata, self.partitions()) | facts

    def _file_list(self, snapshot: Snapshot | None) -> FileList:
        if self._files is None or snapshot is None or self._files.snapshot_id != snapshot.snapshot_id:
            known = self._files or FileList(self.uuid)
            self._files = known.at(self._loaded.io, snapshot)
        return self._files

    def _listed(self, snapshot_id: int | None, ref: str | None) -> pl.DataFrame:
        with about(table=self.name):
            snapshot, _ = resolve_snapshot(self._loaded.metadata, snapshot_id, ref)
            return self._file_list(snapshot).frame().with_columns(content=CONTENT_KIND)

    def _with_partition_paths(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Partition keys replaced by what people write; only after grouping, because null and 'null' look alike."""
        decoder = PartitionDecoder(self._loaded.metadata)
        keys = frame.select("spec_id", "partition").unique()
        paths = [decoder.path(spec_id, key) for spec_id, key in keys.iter_rows()]
        named = keys.with_columns(pl.Series("path", paths, dtype=pl.String))
        joined = frame.join(named, on=["spec_id", "partition"], how="left", maintain_order="left")
        return joined.with_columns(partition=pl.col("path")).select(frame.columns)
