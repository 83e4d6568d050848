"""Tables with a primary key: changes are written to one store and merged with the other when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from pyarctic.config import TableName
from pyarctic.errors import NotFound, UsageError, about
from pyarctic.iceberg.catalog import translate_catalog_errors
from pyarctic.iceberg.manifest import snapshot_by_id
from pyarctic.tables.evolve import Evolution, are_equal, catch_up
from pyarctic.tables.format.change_columns import read_change_files
from pyarctic.tables.format.file_names import STORES, Store, StorePaths, parse_change_file_names, parse_file_names
from pyarctic.tables.format.merged_sequence import merged_sequences
from pyarctic.tables.format.store_properties import TableKind, change_store_identifier, check_spec, key_names
from pyarctic.tables.format.transactions import BEGUN, ENDED
from pyarctic.tables.read.change_log import ChangeLog
from pyarctic.tables.read.change_scan import ChangeScan
from pyarctic.tables.read.key_groups import select_unmerged
from pyarctic.tables.read.merged_scan import MEMORY_BYTES, MergedScan, StoreState
from pyarctic.tables.snapshots import is_not_after, resolve_snapshot
from pyarctic.tables.table import RowScan, Table
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
        store: str = "merged",
        memory_bytes: int = MEMORY_BYTES,
    ) -> RowScan:
        """Rows of the table, one per key; or of one store: "base" has the last merged state, "change" has the changes with
        `_transaction_id`, `_file_offset` and `_change_action`.

        For merged rows, `snapshot_id` and `as_of` select a snapshot of the change store, with a snapshot of Base into which
        no later change was merged."""
        if store not in _READABLE:
            raise UsageError(f"unknown store: {store!r}", hint=f"One of: {', '.join(_READABLE)}.")
        with about(table=self.name):
            if store == "base":
                return super().scan(columns, where, snapshot_id, ref, as_of)
            self.keep_up()
            check_spec(self._loaded.metadata, self.change_store.view.metadata)
            if ref is not None:
                raise UsageError("branches and tags belong to one store", hint='Use store="base".')
            snapshot, schema = resolve_snapshot(self.change_store.view.metadata, snapshot_id, None, as_of)
            change = StoreState(view=self.change_store.view, snapshot=snapshot, files=self.change_store._file_list(snapshot))
            if store == "change":
                return ChangeScan(change, schema=self.schema, columns=columns, where=where)
            is_past = snapshot_id is not None or as_of is not None
            base = self._base_snapshot_at(snapshot, as_of) if is_past else self._loaded.metadata.current_snapshot()
            # The schema of that time is known from the changes: Base may not have been written since.
            schema = schema if is_past else self.schema
            state = StoreState(view=self.view, snapshot=base, files=self._file_list(base))
            return MergedScan(state, change, schema=schema, columns=columns, where=where, memory_bytes=memory_bytes)

    def _base_snapshot_at(self, change: Snapshot | None, as_of: datetime | None) -> Snapshot | None:
        """The newest base snapshot, not younger than `as_of`, that contains no change later than a snapshot of the change
        store."""
        if change is None:
            return self._loaded.metadata.current_snapshot()
        metadata = self._loaded.metadata
        snapshot = metadata.current_snapshot()
        if snapshot is None:
            return None
        while snapshot is not None:
            if as_of is None or is_not_after(snapshot.timestamp_ms, as_of):
                merged = merged_sequences(metadata, self._loaded.io, snapshot)
                if max(merged.values(), default=0) <= (change.sequence_number or 0):
                    return snapshot
            parent = snapshot.parent_snapshot_id
            if parent is None and (snapshot.sequence_number or 0) <= 1:  # some engines remove the id of an expired parent
                return None
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)
        raise NotFound(
            f"Base has no snapshot as old as snapshot {change.snapshot_id} of the change store",
            hint="It was expired. Newer snapshots of the change store can still be read.",
            snapshot_id=change.snapshot_id,
        )

    def files(
        self,
        snapshot_id: int | None = None,
        ref: str | None = None,
        content: str | None = None,
        *,
        store: Store = "base",
    ) -> pl.DataFrame:
        """The live files of a store, with the facts of their names: `node_id`, `kind`, `transaction_id`."""
        if store == "change":
            frame = self.change_store.files(snapshot_id, ref, content)
        else:
            frame = super().files(snapshot_id, ref, content, store=store)
        return parse_file_names(frame, store).drop("writer")

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

    def changes(self, since: int | None = None) -> ChangeLog:
        """All changes in order, with `_change_action`; or those committed after a snapshot of the change store."""
        with about(table=self.name):
            view = self.change_store.view
            frame = self.change_store.file_list.frame()
            if since is not None:
                after = snapshot_by_id(view.metadata, since)
                frame = frame.filter(pl.col("data_sequence_number") > (after.sequence_number or 0))
            reader = read_change_files(view, parse_change_file_names(frame))
            return ChangeLog(reader, reader.numbered_files(), self.schema.fields, self.primary_key)

    def last_step(self, property_: str) -> int | None:
        steps = (super().last_step(property_), self.change_store.last_step(property_))
        return max((step for step in steps if step is not None), default=None)

    def prepare_write(
        self,
        mode: str = "insert",
        *,
        across_partitions: bool = False,
        replace: str = "table",
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
            raise UsageError(f'mode "{mode}" replaces nothing', hint='where and replace are for mode="overwrite".')
        if mode == "insert" and self.properties.get(_UPSERT_ENABLED, "").lower() == "true":
            mode = "upsert"  # as other engines do it
        if mode not in ("insert", "upsert", "delete", "cdc"):
            raise UsageError(f"unknown mode: {mode!r}", hint="One of: insert, upsert, delete, cdc, overwrite.")
        if across_partitions and mode not in ("upsert", "delete"):
            raise UsageError("across_partitions is for upsert and delete")
        if across_partitions:  # others may have moved rows since
            self.refresh()
        self._catch_up()
        return ChangeWrite(self, mode, across_partitions=across_partitions)  # type: ignore[arg-type]  # checked above

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
