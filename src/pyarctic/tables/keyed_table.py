"""Tables with a primary key: changes are written to one store and merged with the other when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import polars as pl
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from pyarctic.config import TableName
from pyarctic.errors import UsageError, about
from pyarctic.iceberg.catalog import translate_catalog_errors
from pyarctic.iceberg.manifest import snapshot_by_id
from pyarctic.iceberg.predicate import ALWAYS_TRUE
from pyarctic.iceberg.read import RowScan, Scan
from pyarctic.tables.commit_reports import belongs_to
from pyarctic.tables.evolve import Evolution, are_equal, catch_up
from pyarctic.tables.format.file_names import STORES, Store, StorePaths, parse_file_names
from pyarctic.tables.format.merged_sequence import merged_sequences, properties_at
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.format.store_properties import TableKind, change_store_identifier, check_spec, key_names
from pyarctic.tables.format.transactions import BEGUN, ENDED
from pyarctic.tables.maintenance import ManifestReport
from pyarctic.tables.read.change_log import ChangeLog, ChangeSelection, plan_change_log
from pyarctic.tables.read.change_scan import ChangeScan
from pyarctic.tables.read.key_groups import select_unmerged
from pyarctic.tables.read.key_lookup import KeyLookup
from pyarctic.tables.read.merged_scan import MEMORY_BYTES, MergedScan, StoreState
from pyarctic.tables.table import ContentKind, ReplaceScope, ScanStore, Table, WriteMode
from pyarctic.tables.time_travel import check_store, resolve_change_snapshot, resolve_keyed_snapshot
from pyarctic.tables.upgrade import UpgradeReport, upgrade
from pyarctic.tables.write.overwrite_scope import parse_overwrite_scope
from pyarctic.tables.write.prepared import BaseWrite, ChangeWrite, PreparedWrite

_READABLE = ("merged", *STORES)
_UPSERT_ENABLED = "write.upsert.enabled"


class KeyedTable(Table):
    """A table with a primary key. Its own metadata and files are those of the base store; `change_store` is the other
    store."""

    def __init__(self, name: TableName, base: IcebergTable, change: IcebergTable) -> None:
        super().__init__(name, base)
        identifier = change_store_identifier(base.metadata.properties)
        self.change_store = Table(TableName(catalog=name.catalog, namespace=identifier[:-1], table=identifier[-1]), change)
        belongs_to(self.change_store, self)
        self._change_metadata = change.metadata
        """The change store at the time when Base was loaded."""

    @property
    def kind(self) -> TableKind:
        return "keyed"

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The key columns in the order of their declaration."""
        return key_names(self._loaded.metadata)

    def refresh(self) -> KeyedTable:
        """Load the newest metadata, of Base first: changes that are merged meanwhile are then seen in Base or in the change
        store."""
        super().refresh()
        self.change_store.refresh()
        self._change_metadata = self.change_store._loaded.metadata
        return self

    def keep_up(self) -> None:
        """Load Base again if the change store was refreshed since. A write refreshes it, and others may have removed changes
        that they merged into a newer Base."""
        if self.change_store._loaded.metadata is not self._change_metadata:
            super().refresh()
            self._change_metadata = self.change_store._loaded.metadata

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
        snapshot_id: int | None = None,
        ref: str | None = None,
        as_of: datetime | None = None,
        *,
        store: ScanStore = "merged",
        memory_bytes: int = MEMORY_BYTES,
    ) -> RowScan:
        """Rows of the table, one per key; or of one store: "base" has the last merged state, "change" has the changes with
        `_transaction_id`, `_file_offset` and `_change_action`.

        For merged rows and changes, `snapshot_id` is one of either store. It stands for the time of its commit, and both
        stores are read as they were then."""
        if store not in _READABLE:
            raise UsageError(f"unknown store: {store!r}", hint=f"One of: {', '.join(_READABLE)}.")
        with about(table=self.name):
            if store == "base":
                check_store(snapshot_id, self._loaded.metadata, self.change_store.view.metadata, "base")
                return self._look_up(super().scan(columns, where, snapshot_id, ref, as_of))
            self.keep_up()
            check_spec(self._loaded.metadata, self.change_store.view.metadata)
            if ref is not None:
                raise UsageError("branches and tags belong to one store", hint='Use [[store="base"]].')
            base, change = self.view, self.change_store.view
            if store == "change":
                snapshot = resolve_change_snapshot(base, change, snapshot_id, as_of)
                state = self._change_state(snapshot)
                return ChangeScan(state, schema=self.schema, columns=columns, where=where, base=base.metadata)
            then = resolve_keyed_snapshot(base, change, snapshot_id, as_of)
            return MergedScan(
                StoreState(view=base, snapshot=then.base, files=self._file_list(then.base)),
                self._change_state(then.change),
                schema=then.schema,
                columns=columns,
                where=where,
                memory_bytes=memory_bytes,
            )

    def _look_up(self, scan: RowScan) -> RowScan:
        """A scan of the base store, of only those nodes that may hold the wanted keys."""
        if not isinstance(scan, Scan) or scan.condition == ALWAYS_TRUE:
            return scan
        view, stores = self.view, (self._loaded.metadata, self.change_store.view.metadata)
        lookup = KeyLookup.of(PrimaryKey.of(view.metadata, view.name), scan.table_schema, scan.condition)
        return scan.selecting(lambda data: lookup.select_nodes_of("base", data, view, scan.listed, stores))

    def _change_state(self, snapshot: Snapshot | None) -> StoreState:
        files = self.change_store._file_list(snapshot)
        return StoreState(view=self.change_store.view, snapshot=snapshot, files=files)

    def files(
        self,
        snapshot_id: int | None = None,
        ref: str | None = None,
        content: ContentKind | None = None,
        *,
        store: Store = "base",
    ) -> pl.DataFrame:
        """The live files of a store, with the facts of their names: `node_id`, `kind`, `transaction_id`."""
        with about(table=self.name):
            stores = (self._loaded.metadata, self.change_store.view.metadata)
            check_store(snapshot_id, *(stores if store == "base" else stores[::-1]), store)
        if store == "change":
            frame = self.change_store.files(snapshot_id, ref, content)
        else:
            frame = super().files(snapshot_id, ref, content, store=store)
        return parse_file_names(frame, store).drop("writer", "is_foreign", strict=False)

    def snapshots(self, *, store: Store = "base") -> pl.DataFrame:
        """The snapshots of a store, oldest first."""
        return self.change_store.snapshots() if store == "change" else super().snapshots(store=store)

    def _refuse_other_store(self, store: str) -> None:
        if store != "base":
            raise UsageError(f"no single store: {store!r}", hint="One of: base, change.", table=self.name)

    def merged_sequences(self) -> dict[str, int]:
        """Partition path → greatest sequence number of the change store that is merged into Base."""
        with about(table=self.name):
            metadata = self._loaded.metadata
            return merged_sequences(metadata, self._loaded.io, metadata.current_snapshot())

    def changes(  # type: ignore[override]  # other tables refuse whatever is given
        self,
        since: int | None = None,
        *,
        until: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
    ) -> ChangeLog:
        """Changes in order, with `_transaction_id`, `_file_offset` and `_change_action`: all, or those committed after one
        snapshot of either store and up to another.

        `where` may name these three columns, too. It selects rows of the log: both images of an update have their own
        values."""
        with about(table=self.name):
            state = self._change_state(self.change_store.view.metadata.current_snapshot())
            after, upto = self._change_sequence(since), self._change_sequence(until)
            if after is not None and upto is not None and after > upto:
                raise UsageError(
                    f"snapshot {since} (since) is later than {until} (until)", hint="Exchange them, or leave one out."
                )
            selection = ChangeSelection(columns=columns, where=where, after=after or 0, upto=upto)
            return plan_change_log(state, self._loaded.metadata, self.schema, selection)

    def _change_sequence(self, snapshot_id: int | None) -> int | None:
        """The sequence number of the change store at a snapshot of either store."""
        if snapshot_id is None:
            return None
        snapshot = resolve_change_snapshot(self.view, self.change_store.view, snapshot_id, None)
        return (snapshot.sequence_number or 0) if snapshot is not None else 0

    def last_step(self, property_: str) -> int | None:
        steps = (super().last_step(property_), self.change_store.last_step(property_))
        return max((step for step in steps if step is not None), default=None)

    def prepare_write(
        self,
        mode: WriteMode = "insert",
        *,
        across_partitions: bool = False,
        replace: ReplaceScope = "table",
        where: str | BooleanExpression | None = None,
    ) -> PreparedWrite:
        check_spec(self._loaded.metadata, self.change_store.view.metadata)
        if mode == "overwrite":
            if across_partitions:
                raise UsageError("across_partitions is for upsert and delete")
            scope = parse_overwrite_scope(self._loaded.metadata, replace, where)
            self._catch_up()
            return BaseWrite(self, scope)
        if where is not None or replace != "table":
            raise UsageError(
                f'mode "{mode}" replaces nothing', hint='[[where]] and [[replace]] are for [[mode="overwrite"]].'
            )
        if mode == "insert" and self.properties.get(_UPSERT_ENABLED, "").lower() == "true":
            mode = "upsert"  # as other engines do it
        if mode not in ("insert", "upsert", "delete", "cdc"):
            raise UsageError(f"unknown mode: {mode!r}", hint="One of: insert, upsert, delete, cdc, overwrite.")
        if across_partitions and mode not in ("upsert", "delete"):
            raise UsageError("across_partitions is for upsert and delete")
        if across_partitions:  # others may have moved rows since
            self.refresh()
        self._catch_up()
        return ChangeWrite(self, mode, across_partitions=across_partitions)

    def _begin(self) -> int:
        """Begin a transaction by an empty commit; gives its id."""
        committed = self.change_store._append(empty=True, snapshot_properties={BEGUN: ""})
        snapshot = snapshot_by_id(committed.metadata, committed.snapshot_id or 0)
        return snapshot.sequence_number or 0

    def _end(self, begun: Sequence[int]) -> None:
        """Record that transactions will commit nothing, so that optimizing does not wait for them."""
        if begun:
            self.change_store._append(empty=True, snapshot_properties={ENDED: ",".join(map(str, begun))})

    def _evolve(self, evolution: Evolution) -> None:
        evolution.check(self.primary_key)
        self._catch_up()
        super()._evolve(evolution)
        self._catch_up()

    def set(self, properties: Mapping[str, str]) -> None:
        super().set(properties)
        self.change_store._change_properties(set_={str(name): str(value) for name, value in properties.items()})

    def unset(self, *names: str) -> None:
        super().unset(*names)
        self.change_store._change_properties(unset=names)

    def _catch_up(self) -> None:
        with translate_catalog_errors(self._name.catalog, self.name):
            if not are_equal(self.schema, self.change_store.schema):  # others may have changed both stores
                self.refresh()
            catch_up(self._loaded.metadata, self.change_store._loaded)

    def _properties_at(self, snapshot: Snapshot) -> dict[str, str]:
        return properties_at(self._loaded.metadata, self._loaded.io, snapshot)

    def upgrade(self, *, dry_run: bool = False) -> UpgradeReport:
        """Store how far changes are merged so that every Iceberg reader can load the base store. Needed once for tables
        that were merged by other engines of the format. Older snapshots of Base are expired."""
        return upgrade(self, dry_run=dry_run)

    def rewrite_manifests(self, *, everything: bool = False, dry_run: bool = False) -> ManifestReport:
        """Merge small manifests of both stores. Changes keep their order: it depends on the sequence numbers of their files,
        which stay as they are."""
        base = super().rewrite_manifests(everything=everything, dry_run=dry_run)
        return replace(base, change_store=self.change_store.rewrite_manifests(everything=everything, dry_run=dry_run))

    def summary(self) -> dict[str, Any]:
        """The facts of the table, with those of the change store."""
        changes = self.files(store="change")
        inserts, deletes = (changes.filter(pl.col("kind") == kind) for kind in ("I", "ED"))
        pending = self._pending()
        return super().summary() | {
            "primary_key": list(self.primary_key),
            "change_store": {
                "name": self.change_store.name,
                "location": self.change_store.location,
                "snapshots": len(self.change_store.view.metadata.snapshots),
                "insert_files": inserts.height,
                "inserted_records": int(inserts["record_count"].sum()),
                "delete_files": deletes.height,
                "deleted_records": int(deletes["record_count"].sum()),
                "unmerged_files": pending.height,
                "unmerged_records": int(pending["record_count"].sum()),
                "bytes": int(changes["file_size_bytes"].sum()),
            },
            "merged_sequences": self.merged_sequences(),
        }

    def _pending(self) -> pl.DataFrame:
        """The files of the change store that are not merged yet."""
        paths = StorePaths(self.change_store.view.metadata)
        return select_unmerged(self.change_store.file_list.frame(), paths, self.merged_sequences())
