"""What a look at a table came to, and when the next one is due. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from pyarctic._version import __version__
from pyarctic.ams.rows import Document, TableRow
from pyarctic.ams.settings import ServiceSettings
from pyarctic.ams.states import TableState
from pyarctic.config.table_properties import GROUP
from pyarctic.tables import KeyedTable, Table

_SLOWER, _FASTER = 1.5, 0.5
"""A table that has not changed is looked at less often, one that has more often."""
_LONGEST_WAIT = timedelta(seconds=30)
"""How soon a table whose catalog did not answer is looked at again, at the latest after some tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSeen:
    """A table as a look has found it."""

    snapshots: tuple[int | None, int | None]
    """Of the base and the change store."""
    sequences: tuple[int | None, int | None]
    group: str
    settings: str
    """Changes with anything but its files that tells what it needs, and with the release of PyArctic."""

    @classmethod
    def of(cls, table: Table) -> Self:
        """A table as it was loaded. Version 1 of the format has no sequence numbers."""
        stores = (table.view, table.change_store.view if isinstance(table, KeyedTable) else None)
        base, change = (None if store is None else store.snapshot_id for store in stores)
        sequences = [None if store is None else getattr(store.metadata, "last_sequence_number", None) for store in stores]
        return cls(
            snapshots=(base, change),
            sequences=(sequences[0], sequences[1]),
            group=GROUP.of(table.properties),
            settings=_settings_of(table),
        )


def _settings_of(table: Table) -> str:
    metadata = table.view.metadata
    layout = [metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id, metadata.format_version]
    text = json.dumps([__version__, layout, sorted(table.properties.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookOutcome:
    """What a look came to."""

    table: TableSeen | None = None
    """None: it could not be loaded."""
    figures: Document | None = None
    """Of its evaluation; None: it was not evaluated."""
    must_plan: bool = False
    """Whether there is something to do that was not planned."""
    is_unchanged: bool = False
    problem: str | None = None


def may_need(row: TableRow, now: datetime) -> bool:
    """Whether a table that has not changed may need something all the same."""
    due_at = row.figures.get("next_due_at")
    is_due = due_at is not None and datetime.fromisoformat(due_at) <= now
    return row.state is TableState.ACTIVE and (row.must_plan or is_due)


def note_look(row: TableRow, begun: TableRow, outcome: LookOutcome, settings: ServiceSettings, now: datetime) -> TableRow:
    """The row of a table after a look. `begun`: the row when the look began. What others have asked for since then is not
    answered by this look: it stays due."""
    seconds = row.look_seconds * (_SLOWER if outcome.is_unchanged else _FASTER)
    least, most = settings.min_refresh_interval, settings.max_refresh_interval
    seconds = min(max(seconds, least.total_seconds()), most.total_seconds())
    must_plan, trigger, wait = outcome.must_plan, None, timedelta(seconds=seconds)
    if outcome.problem is not None:  # the next look is for what this one was for
        must_plan, trigger, wait = row.must_plan, row.trigger, min(wait, _LONGEST_WAIT)
    elif must_plan and row.state is TableState.ACTIVE:
        wait = min(wait, max((row.plan_after or now) - now, settings.min_plan_interval))
    if outcome.table is not None:
        base_sequence, change_sequence = outcome.table.sequences
        row = replace(row, base_sequence=base_sequence, change_sequence=change_sequence, group=outcome.table.group)
    if outcome.table is not None and outcome.figures is not None:
        base, change = outcome.table.snapshots
        row = replace(row, figures=outcome.figures, base_snapshot_id=base, change_snapshot_id=change)
    if _asked(row) == _asked(begun):
        row = replace(row, next_look_at=now + wait, trigger=trigger, must_plan=must_plan)
    else:
        row = replace(row, must_plan=must_plan or row.must_plan)
    return replace(row, looked_at=now, look_seconds=seconds, problem=outcome.problem)


def _asked(row: TableRow) -> tuple[datetime, str | None, bool]:
    return row.next_look_at, row.trigger, row.must_plan
