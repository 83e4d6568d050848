"""Looking at a table: the one place of this room that reads its metadata."""

from __future__ import annotations

from datetime import UTC, datetime

from pyarctic.errors import Unsupported, about
from pyarctic.iceberg import PartitionDecoder, match_deletes
from pyarctic.optimizing.evaluate import Evaluation, Observation, evaluate
from pyarctic.optimizing.history import WRITERS_WINDOW, recent_statements, snapshot_times, writers_activity
from pyarctic.optimizing.reach import metric_ids, reach
from pyarctic.optimizing.settings import Settings
from pyarctic.optimizing.sorting import table_order
from pyarctic.tables import Table


def check_kind(table: Table) -> None:
    """Refuse tables that this room would spoil: their files must stay in their nodes, and changes in their order."""
    if table.kind == "keyed" or table.store == "change":
        raise Unsupported(
            "keyed tables are not optimized yet" if table.kind == "keyed" else "this is the change store of a keyed table",
            hint="Nothing was changed. Native and unkeyed tables can be optimized.",
            table=table.name,
        )


def observe(table: Table, now: datetime | None = None) -> Observation | None:
    """The table as it was loaded; None when it has no snapshot."""
    now = now or datetime.now(UTC)
    metadata = table.view.metadata
    snapshot = metadata.current_snapshot()
    with about(table=table.name):
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


def evaluate_table(table: Table, now: datetime | None = None) -> Evaluation | None:
    observation = observe(table, now)
    return None if observation is None else evaluate(observation)
