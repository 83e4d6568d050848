"""Observing a table: the only module of this package that reads a table's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import Conflict, Unsupported, about
from pyarctic.iceberg.delete import DeleteMatches, match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.optimizing.observe.changes import PendingChanges, observe_changes
from pyarctic.optimizing.observe.destinations import destinations, source_ids
from pyarctic.optimizing.observe.history import ACTIVITY, WRITERS_WINDOW, recent_statements, snapshot_times, writers_activity
from pyarctic.optimizing.order.key_bounds import key_bounds, metric_ids
from pyarctic.optimizing.order.sort_order import Order, table_order
from pyarctic.optimizing.settings import Settings
from pyarctic.tables import KeyedTable, Table
from pyarctic.tables.format import CHANGE_BUCKETS, tree_mask
from pyarctic.tables.read import check_files

_MAX_SCHEMA_CHECKS = 3
_KEYED_VERSION = 2
"""The shared format has position deletes, and rows without ids."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """A table at one moment: everything that a decision may depend on."""

    table: str
    metadata: TableMetadata
    snapshot_id: int | None
    """None: the table has no snapshot. A keyed table may have changes nevertheless."""
    settings: Settings
    matches: DeleteMatches
    """The data files with their deletes."""
    times: pl.DataFrame
    """As `history.SNAPSHOT_TIMES`."""
    activity: pl.DataFrame
    """As `history.ACTIVITY`."""
    now: datetime
    order: Order | None = None
    """How the rows of partitions should be sorted."""
    bounds: pl.DataFrame | None = None
    """As `key_bounds.key_bounds`, if the order has dimensions."""
    destinations: pl.DataFrame | None = None
    """As `destinations.destinations`, for the data files of former partition specs, if there are any."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedObservation(Observation):
    """A keyed table at one moment: the base store, and the changes that are not merged into it."""

    changes: PendingChanges


def check_optimizable(table: Table) -> None:
    """Refuse a store that is not a table by itself."""
    if table.store == "change":
        raise Unsupported(
            "this is the change store of a keyed table",
            hint="Nothing was changed. Optimize the table itself: its changes are merged into Base.",
            table=table.name,
        )


def observe(table: Table, now: datetime | None = None) -> Observation | None:
    """Observe a table as it was loaded; None if it is empty."""
    now = now or datetime.now(UTC)
    with about(table=table.name):
        return _observe_keyed(table, now) if isinstance(table, KeyedTable) else _observe_native(table, now)


def _observe_native(table: Table, now: datetime) -> Observation | None:
    metadata = table.view.metadata
    snapshot = metadata.current_snapshot()
    settings = Settings.of(metadata.properties)
    if snapshot is None:
        return None
    files = table.file_list
    matches = match_deletes(files.frame(), PartitionDecoder(metadata).unpartitioned_specs())
    order = table_order(metadata, settings)
    bounds = None
    if order is not None and order.dimensions and matches.data.height:
        bounds = key_bounds(order, files.with_metrics(table.view.io, matches.data, metric_ids(order)))
    of_former_specs = matches.data.filter(pl.col("spec_id") != metadata.default_spec_id)
    metrics = files.with_metrics(table.view.io, of_former_specs, source_ids(metadata))
    statements = recent_statements(metadata, files.reader(table.view.io), now - WRITERS_WINDOW)
    return Observation(
        table=table.name,
        metadata=metadata,
        snapshot_id=snapshot.snapshot_id,
        settings=settings,
        matches=matches,
        times=snapshot_times(metadata),
        activity=writers_activity(statements, settings.quiet_time, now),
        now=now,
        order=order,
        bounds=bounds,
        destinations=destinations(metadata, metrics) if metrics.height else None,
    )


def _observe_keyed(table: KeyedTable, now: datetime) -> KeyedObservation | None:
    """Statements of other engines are not read: writers of a keyed table append to its change store, and conflict with
    nothing."""
    _load_all_columns(table)
    metadata = table.view.metadata
    if metadata.format_version > _KEYED_VERSION:
        raise Unsupported(
            f"Base has format version {metadata.format_version}; keyed tables have version {_KEYED_VERSION}",
            hint="Another engine has upgraded it. It can be read and written, but its changes cannot be merged.",
        )
    write_nodes = tree_mask(metadata.properties, CHANGE_BUCKETS) + 1
    settings = Settings.of(metadata.properties, write_nodes)
    if metadata.current_snapshot() is None and table.change_store.view.metadata.current_snapshot() is None:
        return None
    files = check_files(table.file_list, metadata)
    return KeyedObservation(
        table=table.name,
        metadata=metadata,
        snapshot_id=table.view.snapshot_id,
        settings=settings,
        matches=match_deletes(files, PartitionDecoder(metadata).unpartitioned_specs()),
        times=snapshot_times(metadata),
        activity=pl.DataFrame(schema=ACTIVITY),
        now=now,
        changes=observe_changes(table, settings, now),
    )


def _load_all_columns(table: KeyedTable) -> None:
    """Columns may have been added after the base store was loaded and before the change store was. They would be lost."""
    for _ in range(_MAX_SCHEMA_CHECKS):
        table.keep_up()
        if set(table.change_store.schema.field_ids) <= set(table.schema.field_ids):
            return
        table.refresh()
    raise Conflict(
        "the change store has columns that Base does not have",
        hint="Its schema is being changed. Try again; if that does not help, change the schema through the table.",
    )
