"""Routes of tables and catalogs."""

from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import AfterValidator, AwareDatetime, Field

from pyarctic.ams import (
    ENDED_PROCESSES,
    WORKING_OPTIMIZERS,
    Ams,
    EventRow,
    OptimizerRow,
    ProcessRow,
    ProcessState,
    ReportedCommit,
    TableRow,
    TableState,
    TaskRow,
)
from pyarctic.ams.store import Transaction
from pyarctic.errors import NotFound, UsageError
from pyarctic.optimizing import KindChoice, Options, explain_table
from pyarctic.server.auth import Caller
from pyarctic.server.documents import (
    MAX_NUMBER,
    CatalogDocument,
    CatalogPage,
    Document,
    EventDocument,
    EventPage,
    ExplanationDocument,
    HealthDocument,
    ProcessDocument,
    ProcessStarted,
    TableDocument,
    TablePage,
)
from pyarctic.server.hindrances import TableSituation, describe
from pyarctic.server.paging import DEFAULT_LIMIT, Cursor, Limit, Order, Window, read_page
from pyarctic.server.problems import problems
from pyarctic.server.service import PREFIX, CatalogPlaces, Evaluations, Openings, Service

router = APIRouter(tags=["tables"])
_TABLE = "/catalogs/{catalog}/databases/{database}/tables/{table}"
_THERE = frozenset(TableState) - {TableState.GONE}

Catalog = Annotated[str, Path(description="The name of the catalog.")]
Database = Annotated[str, Path(description="The database; dots separate the parts of one with several.")]
TableName = Annotated[str, Path(description="The name of the table in its database.")]


def _to_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError as cause:
        raise ValueError("beyond the year 9999") from cause


class CommitReport(Document):
    """A commit that a writer has made. Reporting it lets the service look at the table at once."""

    store: Literal["base", "change"]
    """The store that was committed to; `base`, unless the table is keyed and its change store was written."""
    table_uuid: str
    snapshot_id: str = Field(pattern=r"^-?\d{1,19}$")
    parent_id: str | None = Field(default=None, pattern=r"^-?\d{1,19}$")
    """The snapshot before; null: there was none."""
    sequence_number: int = Field(ge=0, le=MAX_NUMBER)
    """That of the commit. One that is not above the newest known one is no news."""
    files: list[dict[str, object]] | None = None
    """The files that were added; the service may read them from the table instead."""


class CommitReported(Document):
    """Whether a reported commit is news."""

    news: bool


class ProcessWish(Document):
    """What to plan now."""

    kind: KindChoice = "auto"
    """`auto` follows the rules; the others are applied to every partition that gains by it."""


class Pause(Document):
    """Why a table is paused."""

    why: str = Field(default="somebody asked for it", max_length=1000)
    until: Annotated[AwareDatetime, AfterValidator(_to_utc)] | None = None
    """When the pause ends; null: when somebody resumes the table."""


@router.get("/tables")
def tables_list(
    service: Service,
    name: Annotated[str | None, Query(description="A glob over `catalog.database.table`.")] = None,
    catalog: Annotated[str | None, Query()] = None,
    database: Annotated[str | None, Query()] = None,
    state: Annotated[list[TableState] | None, Query(description="Without it, all that are not gone.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> TablePage:
    """List the tables that the service watches, by name."""

    def matches(row: TableRow) -> bool:
        of_database = database is None or row.name.startswith(f"{row.catalog}.{database}.")
        return of_database and (name is None or fnmatch.fnmatchcase(row.name, name))

    where = {"state": state or _THERE} | ({} if catalog is None else {"catalog": catalog})
    with service.core.store.read() as view:
        rows, after = read_page(view, TableRow, Order("name"), Window(cursor, limit), matches, **where)
    return TablePage(items=[TableDocument.of(row) for row in rows], next=after)


@router.get("/catalogs")
def catalogs_list(service: Service) -> CatalogPage:
    """List the catalogs of these tables."""
    states: defaultdict[str, Counter[TableState]] = defaultdict(Counter)
    with service.core.store.read() as view:
        for row in view.find(TableRow, state=_THERE):
            states[row.catalog][row.state] += 1
    items = [CatalogDocument(name=name, tables=each.total(), states=dict(each)) for name, each in sorted(states.items())]
    return CatalogPage(items=items, next=None)


@router.get(_TABLE, responses=problems(404))
def tables_get(service: Service, catalog: Catalog, database: Database, table: TableName) -> TableDocument:
    """Get a table."""
    return TableDocument.of(_find(service, catalog, database, table))


@router.get(f"{_TABLE}/explain", responses=problems(404, 503))
def tables_explain(
    service: Service,
    evaluations: Evaluations,
    catalog: Catalog,
    database: Database,
    table: TableName,
    kind: Annotated[KindChoice, Query(description="As for a process.")] = "auto",
) -> ExplanationDocument:
    """Explain what optimizing the table would do now and why, and what is in the way. Nothing is changed."""
    row = _find(service, catalog, database, table)
    with evaluations.place(catalog):
        plan = explain_table(service.core.catalogs.open(row.name), Options(kind=kind))
    with service.core.store.read() as view:
        situation = _situation(view, view.get(TableRow, row.uuid) or row)
    return ExplanationDocument(service=describe(situation, service.core.clock.now()), plan=plan.to_dict())


@router.get(f"{_TABLE}/health", responses=problems(404, 503))
def tables_health(
    service: Service, evaluations: Evaluations, catalog: Catalog, database: Database, table: TableName
) -> HealthDocument:
    """Evaluate the health of the table as it is now."""
    row = _find(service, catalog, database, table)
    with evaluations.place(catalog):
        explanation = explain_table(service.core.catalogs.open(row.name), Options())
    return HealthDocument(table=row.name, observed_at=explanation.observed_at, health=explanation.health.to_dict())


@router.get(f"{_TABLE}/events", responses=problems(404))
def tables_events(
    service: Service,
    catalog: Catalog,
    database: Database,
    table: TableName,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> EventPage:
    """List what happened to the table, the newest first."""
    row = _find(service, catalog, database, table)
    with service.core.store.read() as view:
        order = Order("number", descending=True)
        rows, after = read_page(view, EventRow, order, Window(cursor, limit), table=row.name)
    return EventPage(items=[EventDocument.model_validate(event) for event in rows], next=after)


@router.post(f"{_TABLE}/commits", status_code=202, responses={200: {"model": CommitReported}, **problems(404, 409, 503)})
def tables_report_commit(
    service: Service,
    openings: Openings,
    catalog: Catalog,
    database: Database,
    table: TableName,
    report: CommitReport,
    response: Response,
) -> CommitReported:
    """Report a commit. 202: it is news, and the table is looked at now. 200: the service knows of it already. A new table is
    watched from now on."""
    row = _find(service, catalog, database, table, watch=openings)
    if row.uuid != report.table_uuid:
        service.looks.look_soon(row.uuid)  # it may have been created anew
        raise NotFound(
            f"{row.name} has another uuid, as far as the service knows",
            hint="If the table was created anew, the service finds that out now.",
            table=row.name,
            table_uuid=row.uuid,
        )
    commit = ReportedCommit(
        store=report.store,
        table_uuid=report.table_uuid,
        snapshot_id=int(report.snapshot_id),
        sequence_number=report.sequence_number,
    )
    is_news = service.looks.report(commit)
    response.status_code = 202 if is_news else 200
    return CommitReported(news=is_news)


@router.post(f"{_TABLE}/processes", status_code=202, responses={200: {"model": ProcessStarted}, **problems(404, 409, 503)})
def tables_optimize(
    service: Service,
    evaluations: Evaluations,
    openings: Openings,
    caller: Caller,
    catalog: Catalog,
    database: Database,
    table: TableName,
    wish: ProcessWish,
    response: Response,
) -> ProcessStarted:
    """Plan the table now. 202: a process was started. 200: there is nothing to do."""
    row = _find(service, catalog, database, table, watch=openings)
    with evaluations.place(catalog):
        return start_process(service, row.uuid, wish.kind, caller, response)


@router.post(f"{_TABLE}/pause", responses=problems(404, 409))
def tables_pause(
    service: Service, caller: Caller, catalog: Catalog, database: Database, table: TableName, pause: Pause
) -> TableDocument:
    """Plan nothing for the table until it is resumed. What is executed is finished and committed."""
    if pause.until is not None and pause.until <= service.core.clock.now():
        raise UsageError("the pause would be over already", hint="Choose a later time, or none.", until=pause.until)
    row = _find(service, catalog, database, table)
    return TableDocument.of(service.pause(row.uuid, caller, pause.why, pause.until))


@router.post(f"{_TABLE}/resume", responses=problems(404, 409))
def tables_resume(service: Service, caller: Caller, catalog: Catalog, database: Database, table: TableName) -> TableDocument:
    """Optimize a paused table again, and look at it now."""
    row = _find(service, catalog, database, table)
    return TableDocument.of(service.resume(row.uuid, caller))


def start_process(service: Ams, table_uuid: str, kind: KindChoice, by: str, response: Response) -> ProcessStarted:
    """Plan a table because somebody asks for it."""
    process = service.looks.demand(table_uuid, kind, by)
    if process is not None:
        response.status_code = 202
        response.headers["Location"] = f"{PREFIX}/processes/{process.id}"
        return ProcessStarted(process=ProcessDocument.model_validate(process), reason=None)
    response.status_code = 200
    with service.core.store.read() as view:
        unfinished = _unfinished(view, table_uuid)
    ids = ", ".join(row.id for row in unfinished)
    reason = f"it is in work already: process {ids}" if unfinished else f"nothing would be gained (kind: {kind})"
    return ProcessStarted(process=None, reason=reason)


def _find(service: Ams, catalog: str, database: str, table: str, *, watch: CatalogPlaces | None = None) -> TableRow:
    """A table by its name. `watch`: also a new one, which is opened in one of these places and watched from now on."""
    name = f"{catalog}.{database}.{table}"
    row = _watched(service, name)
    if row is None and watch is not None:
        with watch.place(catalog):
            service.looks.watch(name)
        row = _watched(service, name)
    if row is None:
        hint = "New tables are found within some minutes, if they exist and the configuration of the service includes them."
        raise NotFound(f"no table {name} is watched", hint=hint, table=name)
    return row


def _watched(service: Ams, name: str) -> TableRow | None:
    with service.core.store.read() as view:
        return next(iter(view.find(TableRow, name=name, state=_THERE)), None)


def _unfinished(view: Transaction, table_uuid: str) -> list[ProcessRow]:
    states = set(ProcessState) - ENDED_PROCESSES
    return sorted(view.find(ProcessRow, table_uuid=table_uuid, state=states), key=lambda row: row.created_at)


def _situation(view: Transaction, row: TableRow) -> TableSituation:
    processes = _unfinished(view, row.uuid)
    return TableSituation(
        row=row,
        processes=processes,
        tasks={process.id: view.find(TaskRow, process_id=process.id) for process in processes},
        optimizers=view.find(OptimizerRow, state=WORKING_OPTIMIZERS),
    )
