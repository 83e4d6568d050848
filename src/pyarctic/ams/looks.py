"""Looking at tables: which there are, whether they have changed, and what they need."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from pyarctic.ams.cancelling import cancel_waiting
from pyarctic.ams.core import Core, TableLocks
from pyarctic.ams.handing import Plans
from pyarctic.ams.look_outcomes import LookOutcome, TableSeen, may_need, note_look
from pyarctic.ams.planning import PlannedProcess, figures_of, move_to_group, store_plan
from pyarctic.ams.processes import LONGEST_PAUSE, find_again, move_table
from pyarctic.ams.rechecking import ReplacedUnit, WaitingUnit, replaced_by, waiting_units, with_newer_changes
from pyarctic.ams.rows import ClaimRow, ProcessRow, TableRow
from pyarctic.ams.states import ENDED_PROCESSES, TABLES, ProcessState, TableState
from pyarctic.ams.store import Broken
from pyarctic.ams.times import is_due
from pyarctic.config.table_properties import COMMIT_INTERVAL, ENABLED, GROUP
from pyarctic.errors import ArcticError, Conflict, NotFound, UsageError
from pyarctic.logs import get_logger
from pyarctic.optimizing import KindChoice, Options, plan_table
from pyarctic.optimizing.plan import KeyedPlan, NativePlan
from pyarctic.tables import KeyedTable, Table

_log = get_logger(__name__)

Trigger = Literal["periodic", "reported", "demanded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCommit:
    """A commit that a writer tells of."""

    store: Literal["base", "change"]
    table_uuid: str
    snapshot_id: int
    sequence_number: int


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What was known of a table when a look began."""

    row: TableRow
    in_work: frozenset[str]
    """What unfinished processes have claimed."""
    is_alone: bool
    """Whether there are none."""
    waiting: tuple[WaitingUnit, ...]
    """Partitions of a keyed table that may be planned anew."""


class Looks:
    """Watches the tables of all catalogs."""

    def __init__(self, core: Core, plans: Plans) -> None:
        self._core = core
        self._plans = plans
        self._locks = TableLocks()
        self._handles: dict[str, Table] = {}
        """Of tables that were evaluated: they keep the list of their files."""

    # ---- which tables there are -----------------------------------------------------------------------------------------

    def discover(self) -> None:
        """Notice new, dropped, renamed and recreated tables of all catalogs, one after the other."""
        for catalog in self.catalogs():
            self.discover_in(catalog)

    def catalogs(self) -> list[str]:
        """All catalogs, and then those that are gone and have tables."""
        names = self._core.catalogs.names()
        with self._core.store.read() as view:
            known = {row.catalog for row in view.find(TableRow) if row.state is not TableState.GONE}
        return [*names, *sorted(known.difference(names))]

    def discover_in(self, catalog: str) -> None:
        """Notice new, dropped, renamed and recreated tables of a catalog. One that cannot be listed changes nothing."""
        settings, now = self._core.settings, self._core.clock.now()
        catalogs = self._core.catalogs.names()
        try:
            found = self._core.catalogs.find(catalog, settings.include) if catalog in catalogs else ()
        except ArcticError as error:
            _log.warning("catalog_not_listed", catalog=catalog, reason=str(error))
            return
        names = {name for name in found if not settings.excludes(name)}
        with self._core.store.read() as view:
            known = {row.name: row for row in view.find(TableRow) if row.state is not TableState.GONE}
        missing = {name: row for name, row in known.items() if row.catalog == catalog and name not in names}
        without_catalog = {name for name, row in known.items() if row.catalog not in catalogs}
        for name in sorted(names - known.keys()):
            self._add(name, now, missing.keys() | without_catalog)
        for name, row in missing.items():
            is_excluded = name in found
            why = "the configuration excludes it" if is_excluded else "the catalog does not list it any more"
            self._lose(row.uuid, name, why, now, is_excluded=is_excluded)

    def watch(self, name: str) -> None:
        """Watch a table from now on that discovery would find later, if there is such a table."""
        settings = self._core.settings
        is_included = any(fnmatch.fnmatchcase(name, each) for each in settings.include)
        if is_included and not settings.excludes(name):
            self._add(name, self._core.clock.now())

    def _add(self, name: str, now: datetime, missing: Collection[str] = ()) -> None:
        """Watch a table. `missing`: names that are not there any more: it may have had one of them."""
        try:
            table = self._core.catalogs.open(name)
            if table.store == "change":
                return
            row = _new_row(table, self._core.settings.refresh_interval, now)
        except Exception as error:  # noqa: BLE001  # of a catalog, a storage or a damaged table: others go on
            _log.warning("table_not_opened", table=name, reason=f"{type(error).__name__}: {error}")
            return
        with self._core.store.begin() as transaction:
            known = transaction.get(TableRow, table.uuid)
            if known is None:
                move = TABLES.move(name, None, TableState.ACTIVE, "it was found in its catalog", now, table=name)
                transaction.insert(row)
                transaction.record([move])
            elif known.state is TableState.GONE:
                step = find_again(known, name, now)
                transaction.update(step.row)
                transaction.record(step.transitions)
            elif known.name in missing:
                _log.info("table_renamed", table=name, before=known.name)
                transaction.update(replace(known, name=name, catalog=name.partition(".")[0], next_look_at=now))
                self._handles.pop(known.uuid, None)
            else:
                _log.warning("table_registered_twice", table=name, other=known.name)
        self._core.bells.ring("looks")

    def _lose(self, uuid: str, name: str, why: str, now: datetime, *, is_excluded: bool = False) -> None:
        """There is no such table any more, unless it has another name by now. `is_excluded`: it is there, and what is
        executed is finished."""
        with self._core.store.begin() as transaction:
            row = transaction.get(TableRow, uuid)
            if row is None or row.state is TableState.GONE or row.name != name:
                return
            step = move_table(row, TableState.GONE, why, "service", now)
            transaction.update(step.row)
            transaction.record(step.transitions)
            if is_excluded:
                cancel_waiting(transaction, uuid, why, "service", now)
        self._handles.pop(uuid, None)
        self._core.bells.ring("commits")  # its processes are given up

    # ---- what they need -------------------------------------------------------------------------------------------------

    def due(self) -> Sequence[TableRow]:
        """The tables to look at now, the longest overdue first."""
        now = self._core.clock.now()
        longest = max(self._core.settings.max_refresh_interval, LONGEST_PAUSE)
        with self._core.store.read() as view:
            rows = view.find(TableRow, state=(TableState.ACTIVE, TableState.PAUSED, TableState.DISABLED))
        return sorted((row for row in rows if is_due(row.next_look_at, now, longest)), key=lambda row: row.next_look_at)

    def report(self, commit: ReportedCommit) -> bool:
        """Note a commit that a writer tells of; tells whether it is news. If so, its table is looked at at once."""
        now = self._core.clock.now()
        with self._core.store.begin() as transaction:
            row = transaction.get(TableRow, commit.table_uuid)
            if row is None or row.state is TableState.GONE:
                raise NotFound(
                    f"no table with uuid {commit.table_uuid} is watched",
                    hint="It was dropped, or the configuration of the service excludes it.",
                )
            if commit.store == "change" and row.kind != "keyed":
                raise UsageError(f"{row.name} has no change store", hint="Only tables with a primary key have one.")
            known = row.base_sequence if commit.store == "base" else row.change_sequence
            # Commits of version 1 of the format have no numbers: theirs are 0.
            if known is not None and 0 < commit.sequence_number <= known:
                return False
            row = replace(row, next_look_at=now, trigger="reported")
            if commit.store == "base":
                row = replace(row, base_sequence=commit.sequence_number)
            else:
                row = replace(row, change_sequence=commit.sequence_number)
            transaction.update(row)
        self._core.bells.ring("looks")
        return True

    def look_soon(self, uuid: str) -> None:
        """Look at a table, because somebody has told something of it."""
        with self._core.store.begin() as transaction:
            row = transaction.get(TableRow, uuid)
            if row is None:
                return
            transaction.update(replace(row, next_look_at=self._core.clock.now(), trigger="reported"))
        self._core.bells.ring("looks")

    def look(self, uuid: str) -> ProcessRow | None:
        """Look at a table, and plan what it needs. Errors are noted, and the table is looked at again soon."""
        with self._locks.try_hold(uuid) as is_free:
            return self._look(uuid) if is_free else None

    def _look(self, uuid: str) -> ProcessRow | None:
        now = self._core.clock.now()
        known = self._known(uuid)
        if known is None:
            return None
        trigger: Trigger = "reported" if known.row.trigger == "reported" else "periodic"
        try:
            table = self._open(known.row)
            return None if table is None else self._examine(known, table, trigger, now)
        except Exception as error:  # noqa: BLE001  # of a catalog, a storage or a damaged table: others go on
            self._handles.pop(uuid, None)
            _log.warning("look_failed", table=known.row.name, reason=f"{type(error).__name__}: {error}")
            self._note(known.row, LookOutcome(problem=str(error)), now)
            return None

    def demand(self, uuid: str, kind: KindChoice, by: str) -> ProcessRow | None:
        """Plan a table now because somebody asks for it; None: it needs nothing, or others have all of it in work."""
        now = self._core.clock.now()
        with self._locks.try_hold(uuid) as is_free:
            if not is_free:
                raise Conflict("the table is being looked at", hint="Try again in a moment.")
            known = self._known(uuid)
            if known is None:
                raise NotFound(f"no table with uuid {uuid} is watched")
            table = self._open(known.row)
            if table is None:
                raise NotFound(f"{known.row.name} does not exist any more")
            return self._plan(known, table, "demanded", now, Options(kind=kind), by=by)[0]

    def _known(self, uuid: str) -> _Known | None:
        """What is known of a table before it is loaded: of a process that ends after this, the table is loaded with what it
        has committed, and what it had in work is left out once more."""
        with self._core.store.read() as view:
            row = view.get(TableRow, uuid)
            if row is None or row.state is TableState.GONE:
                return None
            in_work = frozenset(claim.key for claim in view.find(ClaimRow, table_uuid=uuid))
            unfinished = view.find(ProcessRow, table_uuid=uuid, state=set(ProcessState) - ENDED_PROCESSES)
            waiting = waiting_units(view, self._plans, uuid) if row.kind == "keyed" else []
        return _Known(row=row, in_work=in_work, is_alone=not unfinished, waiting=tuple(waiting))

    def _open(self, row: TableRow) -> Table | None:
        """The table in its newest state; None if another one has its name now."""
        table = self._handles.get(row.uuid)
        try:
            table = self._core.catalogs.open(row.name) if table is None else table.refresh()
        except NotFound as error:
            self._lose(row.uuid, row.name, str(error), self._core.clock.now())
            return None
        if table.uuid != row.uuid:
            self._lose(row.uuid, row.name, "another table has its name now", self._core.clock.now())
            self._add(row.name, self._core.clock.now())
            return None
        self._handles[row.uuid] = table
        return table

    def _examine(self, known: _Known, table: Table, trigger: Trigger, now: datetime) -> ProcessRow | None:
        row, seen = known.row, TableSeen.of(table)
        wanted = TableState.ACTIVE if ENABLED.of(table.properties) else TableState.DISABLED
        if row.state is not wanted and {row.state, wanted} == {TableState.ACTIVE, TableState.DISABLED}:
            row = self._switch(row, wanted, now)
            known = replace(known, row=row)
        is_unchanged = seen.snapshots == (row.base_snapshot_id, row.change_snapshot_id)
        is_unchanged = is_unchanged and seen.settings == row.figures.get("settings")
        if row.looked_at is not None and is_unchanged and not may_need(row, now):
            self._note(row, LookOutcome(table=seen, must_plan=row.must_plan, is_unchanged=True), now)
            return None
        may_plan = self._may_plan(row, trigger, now)
        process, plan = (
            self._plan(known, table, trigger, now, Options()) if may_plan else (None, _make_plan(known, table, Options())[0])
        )
        commits = COMMIT_INTERVAL.of(table.properties)
        commit_seconds = None if commits is None else commits.total_seconds()
        figures = figures_of(plan) | {"commit_interval_seconds": commit_seconds, "settings": seen.settings}
        must_plan = plan is not None and bool(plan.tasks) and process is None
        outcome = LookOutcome(table=seen, figures=figures, must_plan=must_plan, is_unchanged=is_unchanged)
        self._note(row, outcome, now)
        return process

    def _may_plan(self, row: TableRow, trigger: Trigger, now: datetime) -> bool:
        interval = self._core.settings.min_plan_interval
        if trigger == "periodic" and row.planned_at is not None and not is_due(row.planned_at + interval, now, interval):
            return False
        is_over = row.plan_after is None or is_due(row.plan_after, now, LONGEST_PAUSE)
        return row.state is TableState.ACTIVE and is_over

    def _plan(
        self, known: _Known, table: Table, trigger: Trigger, now: datetime, options: Options, by: str = "service"
    ) -> tuple[ProcessRow | None, NativePlan | KeyedPlan | None]:
        plan, replaces = _make_plan(known, table, options)
        if plan is None or not (plan.tasks or (plan.dangling_deletes.height and known.is_alone)):
            return None, plan
        group = GROUP.of(table.properties)
        planned = PlannedProcess(table=known.row, plan=plan, trigger=trigger, by=by, group=group, replaces=replaces)
        try:
            process = store_plan(self._core, planned, now)
        except Broken as refusal:  # a process of another thread has some of it: look again
            _log.info("plan_refused", table=known.row.name, reason=str(refusal))
            return None, plan
        self._core.bells.ring("tasks")
        self._core.bells.ring("commits")  # it may have no task, and delete files to remove
        return process, plan

    def _switch(self, row: TableRow, state: TableState, now: datetime) -> TableRow:
        with self._core.store.begin() as transaction:
            current = transaction.get(TableRow, row.uuid) or row
            why = f"{ENABLED.name} says so"
            step = move_table(current, state, why, "table property", now)
            transaction.update(step.row)
            transaction.record(step.transitions)
            if state is TableState.DISABLED:
                cancel_waiting(transaction, row.uuid, why, "table property", now)
        self._core.bells.ring("commits")
        return step.row

    def _note(self, begun: TableRow, outcome: LookOutcome, now: datetime) -> None:
        """Store what a look came to."""
        with self._core.store.begin() as transaction:
            row = transaction.get(TableRow, begun.uuid)
            if row is None:
                return
            noted = note_look(row, begun, outcome, self._core.settings, now)
            transaction.update(noted)
            if noted.group != row.group:
                move_to_group(transaction, noted)
        if noted.group != row.group:
            self._core.bells.ring("tasks")


def _new_row(table: Table, interval: timedelta, now: datetime) -> TableRow:
    return TableRow(
        uuid=table.uuid,
        name=table.name,
        catalog=table.name.partition(".")[0],
        kind=table.kind,
        state=TableState.ACTIVE,
        group=GROUP.of(table.properties),
        next_look_at=now,
        look_seconds=interval.total_seconds(),
    )


def _make_plan(
    known: _Known, table: Table, options: Options
) -> tuple[NativePlan | KeyedPlan | None, Sequence[ReplacedUnit]]:
    """A plan for what is not in work, and the waiting partitions that it replaces. Partitions with newer changes that it
    cannot replace are left as they are."""
    newer = with_newer_changes(known.waiting, table) if isinstance(table, KeyedTable) else []
    plan = plan_table(table, options, in_work=_without(known.in_work, newer))
    if not newer or not isinstance(plan, KeyedPlan):
        return plan, ()
    replaced = replaced_by(plan, newer)
    if len(replaced) < len(newer):
        newer = [each.waiting for each in replaced]
        plan = plan_table(table, options, in_work=_without(known.in_work, newer))
        replaced = replaced_by(plan, newer) if isinstance(plan, KeyedPlan) else []
    return plan, replaced


def _without(in_work: frozenset[str], waiting: Sequence[WaitingUnit]) -> frozenset[str]:
    return in_work.difference(*(each.claims for each in waiting))
