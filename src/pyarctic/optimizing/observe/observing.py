"""Looking at a table: the one place of this room that reads its metadata."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl

from pyarctic.errors import Conflict, Unsupported, about
from pyarctic.iceberg.delete import match_deletes
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.optimizing.evaluate.evaluation import Evaluation, Observation, evaluate
from pyarctic.optimizing.observe.changes import observe_changes
from pyarctic.optimizing.observe.history import ACTIVITY, WRITERS_WINDOW, recent_statements, snapshot_times, writers_activity
from pyarctic.optimizing.order.key_bounds import metric_ids, reach
from pyarctic.optimizing.order.sort_order import table_order
from pyarctic.optimizing.settings import Settings
from pyarctic.tables import KeyedTable, Table
from pyarctic.tables.format import CHANGE_BUCKETS, tree_mask
from pyarctic.tables.read import check_files

_LOOKS = 3


_KEYED_VERSION = 2
"""The shared format has position deletes, and rows without ids."""


def check_kind(table: Table) -> None:
    """Refuse what is no table of its own."""
    if table.store == "change":
        raise Unsupported(
            "this is the change store of a keyed table",
            hint="Nothing was changed. Optimize the table itself: its changes are merged into Base.",
            table=table.name,
        )


def observe(table: Table, now: datetime | None = None) -> Observation | None:
    """The table as it was loaded; None when there is nothing in it."""
    now = now or datetime.now(UTC)
    with about(table=table.name):
        return _observed_keyed(table, now) if isinstance(table, KeyedTable) else _observed(table, now)


def _observed(table: Table, now: datetime) -> Observation | None:
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
        bounds = reach(order, files.with_metrics(table.view.io, matches.data, metric_ids(order)))
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
        reach=bounds,
    )


def _observed_keyed(table: KeyedTable, now: datetime) -> Observation | None:
    """Nobody's statements are looked for: writers of a keyed table append to its change store, and conflict with nothing."""
    _see_all_columns(table)
    metadata = table.view.metadata
    if metadata.format_version > _KEYED_VERSION:
        raise Unsupported(
            f"Base has format version {metadata.format_version}; keyed tables have version {_KEYED_VERSION}",
            hint="Another engine has upgraded it. It can be read and written, but its changes cannot be merged.",
        )
    nodes = tree_mask(metadata.properties, CHANGE_BUCKETS) + 1
    settings = Settings.of(metadata.properties, nodes)
    if metadata.current_snapshot() is None and table.change_store.view.metadata.current_snapshot() is None:
        return None
    files = check_files(table.file_list, metadata)
    return Observation(
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


def _see_all_columns(table: KeyedTable) -> None:
    """Somebody may have added columns after Base was loaded and before the change store was. They would be lost."""
    for _ in range(_LOOKS):
        table.keep_up()
        if set(table.change_store.schema.field_ids) <= set(table.schema.field_ids):
            return
        table.refresh()
    raise Conflict(
        "the change store has columns that Base does not have",
        hint="Its schema is being changed. Try again; if that does not help, change the schema through the table.",
    )


def evaluate_table(table: Table, now: datetime | None = None) -> Evaluation | None:
    observation = observe(table, now)
    return None if observation is None else evaluate(observation)
