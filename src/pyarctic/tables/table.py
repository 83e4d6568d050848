"""The table handle of the library, the command line and Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

import polars as pl
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType

from pyarctic.config import TableName
from pyarctic.config.table_properties import check_properties
from pyarctic.errors import ArcticError, Conflict, Rejected, Unavailable, UsageError, about
from pyarctic.iceberg.catalog import translate_catalog_errors
from pyarctic.iceberg.commit import Change, Committed, ManifestRewrite, NumberedStep, Outcome, RetryPolicy, commit
from pyarctic.iceberg.manifest import CONTENT_KIND, FileList, ManifestReader, ReadManifests, snapshot_by_id
from pyarctic.iceberg.read import RowScan, TableView, arrow_schema, plan_scan
from pyarctic.tables.commit_outcomes import remove_outputs, require_committed
from pyarctic.tables.commit_reports import report_commit
from pyarctic.tables.describe import partition_frame, snapshot_frame, table_facts, table_html, with_partition_paths
from pyarctic.tables.evolve import Evolution, evolve
from pyarctic.tables.format.file_names import Store
from pyarctic.tables.format.store_properties import TableKind, check_user_properties, kind_of, store_of
from pyarctic.tables.maintenance import ManifestReport, rewrite_manifests, set_current_snapshot
from pyarctic.tables.snapshots import resolve_snapshot
from pyarctic.tables.write.once import job_property, parse_step, write_once
from pyarctic.tables.write.overwrite_scope import parse_overwrite_scope
from pyarctic.tables.write.prepared import PreparedWrite, UnkeyedWrite

WriteMode = Literal["insert", "upsert", "delete", "cdc", "overwrite"]
ReplaceScope = Literal["table", "partitions"]
"""What an overwrite replaces: everything, or the partitions that get rows."""
ScanStore = Literal["merged", "base", "change"]
ContentKind = Literal["data", "position-deletes", "equality-deletes", "deletion-vector"]
CONTENT_KINDS: tuple[ContentKind, ...] = get_args(ContentKind)
_INTERNAL = frozenset({"file_list", "keep_up", "kept_manifests", "last_step", "load_newest", "reader", "try_commit", "view"})
"""What other packages of PyArctic use of a table, and `dir` does not show."""


class Table:
    """A table in the state in which it was opened; `refresh` loads the newest state.

    >>> table = pyarctic.table("lake.shop.orders")
    >>> table.scan(["id", "amount"], where="amount > 10").to_arrow()
    """

    def __init__(self, name: TableName, loaded: IcebergTable) -> None:
        self._name = name
        self._loaded = loaded
        self._files: FileList | None = None
        self.kept_manifests: ReadManifests | None = None  # what readers share: for handles that are given up soon

    def __repr__(self) -> str:
        return f"<Table {self.name} ({self.kind}, format v{self.format_version})>"

    def _repr_html_(self) -> str:
        return table_html(repr(self).strip("<>"), self._loaded.metadata, self.primary_key)

    def __dir__(self) -> list[str]:
        names = (name for name in super().__dir__() if name not in _INTERNAL)
        return sorted(name for name in names if not name.startswith("_") or name.startswith("__"))

    @property
    def name(self) -> str:
        return str(self._name)

    @property
    def kind(self) -> TableKind:
        return kind_of(self._loaded.metadata.properties)

    @property
    def store(self) -> Store | None:
        """Which store of a keyed or unkeyed table this is, if any."""
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
        with about(table=self.name):
            return arrow_schema(self.schema.fields)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The names of the identifier fields; empty if the table has none."""
        names = (self.schema.find_column_name(field_id) for field_id in sorted(self.schema.identifier_field_ids))
        return tuple(name for name in names if name is not None)

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._loaded.metadata.properties)

    @property
    def view(self) -> TableView:
        """The current metadata and storage, as readers and writers of files need them."""
        return TableView(name=self.name, metadata=self._loaded.metadata, io=self._loaded.io)

    @property
    def file_list(self) -> FileList:
        """The live files as commits and plans need them; `files` shows them to people."""
        with about(table=self.name):
            return self._file_list(self._loaded.metadata.current_snapshot())

    def reader(self) -> ManifestReader:
        """A manifest reader that keeps the manifests that were read already."""
        return (self._files or FileList(self.uuid)).reader(self._loaded.io, self.kept_manifests)

    def refresh(self) -> Table:
        """Load the newest metadata; returns the table itself."""
        self._loaded = self._load()
        return self

    def load_newest(self) -> TableView:
        """The newest state of the table (of a keyed table: of its base store); this handle stays where it is."""
        new = self._load()
        return TableView(name=self.name, metadata=new.metadata, io=new.io, metadata_location=new.metadata_location)

    def _load(self) -> IcebergTable:
        with translate_catalog_errors(self._name.catalog, self.name):
            return self._loaded.catalog.load_table(self._loaded.name())

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
        snapshot_id: int | None = None,
        ref: str | None = None,
        as_of: datetime | None = None,
        *,
        store: ScanStore = "merged",
    ) -> RowScan:
        """Rows with all deletes applied: of the current state, a snapshot, a branch or tag, or as of a point in time."""
        with about(table=self.name):
            if store not in ("merged", "base"):
                raise UsageError(f"a table without a primary key has no store {store!r}", hint="Leave [[store]] out.")
            snapshot, schema = resolve_snapshot(self._loaded.metadata, snapshot_id, ref, as_of)
            return plan_scan(
                self.view, snapshot=snapshot, schema=schema, columns=columns, where=where, files=self._file_list(snapshot)
            )

    def files(
        self,
        snapshot_id: int | None = None,
        ref: str | None = None,
        content: ContentKind | None = None,
        *,
        store: Store = "base",
    ) -> pl.DataFrame:
        """The live files, data and deletes. `content`: "data", "position-deletes", "equality-deletes" or
        "deletion-vector"."""
        self._refuse_other_store(store)
        if content is not None and content not in CONTENT_KINDS:
            raise UsageError(f"unknown kind of content: {content}", hint=f"One of: {', '.join(CONTENT_KINDS)}.")
        frame = self._files_with_kinds(snapshot_id, ref)
        if content is not None:
            frame = frame.filter(pl.col("content") == content)
        return with_partition_paths(self._loaded.metadata, frame)

    def partitions(self, snapshot_id: int | None = None, ref: str | None = None) -> pl.DataFrame:
        """One row per partition, with the numbers and sizes of its files."""
        files = self._files_with_kinds(snapshot_id, ref)
        return with_partition_paths(self._loaded.metadata, partition_frame(files)).sort("spec_id", "partition")

    def snapshots(self, *, store: Store = "base") -> pl.DataFrame:
        """The snapshots, oldest first, with the branches and tags that refer to them."""
        self._refuse_other_store(store)
        return snapshot_frame(self._loaded.metadata)

    def changes(self, since: int | None = None, **selection: Any) -> RowScan:  # noqa: ARG002  # a keyed table's
        """Changes in order; only keyed tables have them."""
        raise UsageError(
            "a table without a primary key keeps no changes",
            hint="Its snapshots are its history: `arctic table snapshots`.",
            table=self.name,
        )

    def _refuse_other_store(self, store: str) -> None:
        if store != "base":
            message = f"a table without a primary key has no store {store!r}"
            raise UsageError(message, hint="Leave [[store]] out.", table=self.name)

    def commit(self, change: Change | ManifestRewrite) -> Committed:
        """Apply a change atomically; afterwards this handle has the new state.

        Raises `Conflict`, `Rejected` or `OutcomeUnknown`; only after the last one the table may have been changed."""
        with about(table=self.name):
            return require_committed(self.try_commit(change))

    def try_commit(self, change: Change | ManifestRewrite, before_send: Callable[..., None] = lambda _: None) -> Outcome:
        """The same, but the outcome is returned. `before_send`: see `commit`."""
        with about(table=self.name):
            outcome = commit(self._loaded, change, known=self._files, before_send=before_send)
        if isinstance(outcome, Committed):
            self._loaded.metadata = outcome.metadata
            report_commit(self, outcome)
            if isinstance(change, Change) and change.is_append:
                self._advance_file_list()
        return outcome

    def _advance_file_list(self) -> None:
        """Add what was just appended to the files that are known. The next commit would read all manifests since then."""
        if self._files is not None:
            with contextlib.suppress(ArcticError):  # the commit is in the table; the list is only behind
                self._files = self._files.at(self._loaded.io, self._loaded.metadata.current_snapshot())

    def _append(self, **change: Any) -> Committed:
        """Commit a change that is valid for any state of the table, even if the loaded snapshot was expired since."""
        try:
            return self.commit(Change(start=self.view.snapshot_id, **change))
        except Rejected as refusal:
            if refusal.facts.get("reason") != "history-lost" or "start" not in refusal.facts:
                raise
        self.refresh()
        return self.commit(Change(start=self.view.snapshot_id, **change))

    def _commit_alone(self, plan: Callable[[], Change | None]) -> int | None:
        """Commit a change that depends on the complete table: it is planned again whenever another commit came first."""
        for _ in RetryPolicy.of(self.view.metadata).races():
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
                statistics = [file.statistics_path for file in change.statistics]
                remove_outputs(self, statistics, table_uuid=self.view.metadata.table_uuid, since=change.start)
                if refusal.facts.get("reason") != "moved":
                    raise
            self.refresh()
        raise Conflict(
            "all attempts to overwrite lost against other writers",
            hint="Nothing was changed. Try again, or raise the table properties commit.retry.num-retries and "
            "commit.retry.total-timeout-ms.",
        )

    def write(
        self,
        data: Any,
        mode: WriteMode = "insert",
        *,
        across_partitions: bool = False,
        replace: ReplaceScope = "table",
        where: str | BooleanExpression | None = None,
        once: tuple[str, int] | None = None,
    ) -> int | None:
        """Write rows in one commit; gives the snapshot (of the change store, or of Base for an overwrite), or None if there
        was nothing to write.

        `mode`: "insert", or "overwrite" to replace rows: all of them, those of the partitions that get rows
        (`replace="partitions"`), or those of the partitions that `where` selects. With a primary key also "upsert", which
        deletes a key before it inserts it; "delete", which needs the key and partition columns only; "cdc", which takes rows
        with `_change_action`. `across_partitions` deletes rows of the same keys in other partitions as well, for upsert and
        delete.

        `once=("my-job", 42)` makes the write step 42 of a job: it writes nothing and gives None if the table has this step
        of the job or a later one."""
        with about(table=self.name):
            step = None if once is None else parse_step(once)
            if step is not None:  # others may have taken it
                self.refresh()
            write = self.prepare_write(mode, across_partitions=across_partitions, replace=replace, where=where)
            if step is None:
                return write.rows(data)
            return write_once(self, write, step, lambda note: write.rows(data, note))

    def last_once(self, job: str) -> int | None:
        """The last number of a job, `write(…, once=(job, number))`, in the loaded state of the table; None: it has none."""
        return self.last_step(job_property(job))

    def last_step(self, property_: str) -> int | None:
        """The last numbered step (`NumberedStep`) that is in the loaded state of the table."""
        return NumberedStep.last(self._loaded.metadata, property_)

    def prepare_write(
        self,
        mode: WriteMode = "insert",
        *,
        across_partitions: bool = False,
        replace: ReplaceScope = "table",
        where: str | BooleanExpression | None = None,
    ) -> PreparedWrite:
        """Check a write as far as possible without its rows; its files can be written on other machines."""
        if mode in ("upsert", "delete", "cdc") or across_partitions:
            option = "across_partitions" if across_partitions else f"mode {mode!r}"
            raise UsageError(f"{option} needs a primary key", hint='Use [[mode="insert"]] or [[mode="overwrite"]].')
        if mode not in ("insert", "overwrite"):
            raise UsageError(f"unknown mode: {mode!r}", hint="One of: insert, overwrite.")
        if self.store == "change":
            raise UsageError("this is the change store of a table", hint="Write to the table itself.")
        if mode == "insert" and (where is not None or replace != "table"):
            raise UsageError(
                'mode "insert" replaces nothing', hint='[[where]] and [[replace]] are for [[mode="overwrite"]].'
            )
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
        `optional` makes required columns optional. Types are Iceberg types, or texts such as "decimal(10, 2)"."""
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
            texts = {str(name): str(value) for name, value in properties.items()}
            check_properties(texts)
            if self.kind != "native":
                check_user_properties(texts)
            self._change_properties(set_=texts)

    def unset(self, *names: str) -> None:
        """Remove table properties; those that are not set are ignored."""
        with about(table=self.name):
            if self.kind != "native":
                check_user_properties(dict.fromkeys(names, "1"))
            self._change_properties(unset=names)

    def _change_properties(self, *, set_: Mapping[str, str] | None = None, unset: Sequence[str] = ()) -> None:
        if unset:  # others may have set them
            self.refresh()
        present = [name for name in unset if name in self.properties]
        if set_ or present:
            change = Change(start=self.view.snapshot_id, set_properties=set_ or {}, remove_properties=tuple(present))
            self.commit(change)

    def roll_back(self, to: int) -> None:
        """Make an older snapshot of the main branch the current one. Raises `Conflict` if others have committed since this
        table was loaded."""
        with translate_catalog_errors(self._name.catalog, self.name):
            set_current_snapshot(self._loaded, to, self._properties_at(snapshot_by_id(self._loaded.metadata, to)))

    def _properties_at(self, snapshot: Snapshot) -> dict[str, str]:  # noqa: ARG002  # a keyed table's
        """Properties that belong to a snapshot, and are set when the table is rolled back to it."""
        return {}

    def rewrite_manifests(self, *, everything: bool = False, dry_run: bool = False) -> ManifestReport:
        """Merge small manifests and sort their entries by partition, so that planners read less; data files do not change.

        `everything` rewrites the large ones, too. Nothing is committed if there is nothing to merge."""
        return rewrite_manifests(self, everything=everything, dry_run=dry_run)

    def summary(self) -> dict[str, Any]:
        """The facts of the table, ready for JSON."""
        facts = {"name": self.name, "kind": self.kind, "primary_key": list(self.primary_key)}
        return table_facts(self._loaded.metadata, self.partitions()) | facts

    def _file_list(self, snapshot: Snapshot | None) -> FileList:
        if self._files is None or snapshot is None or self._files.snapshot_id != snapshot.snapshot_id:
            self._files = (self._files or FileList(self.uuid)).at(self._loaded.io, snapshot)
        return self._files

    def _files_with_kinds(self, snapshot_id: int | None, ref: str | None) -> pl.DataFrame:
        with about(table=self.name):
            snapshot, _ = resolve_snapshot(self._loaded.metadata, snapshot_id, ref)
            return self._file_list(snapshot).frame().with_columns(content=CONTENT_KIND)
