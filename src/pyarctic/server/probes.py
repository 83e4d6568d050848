"""Whether the process is up, and whether it does its work: for those who restart it and send it requests."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response

from pyarctic.ams import Crew, EventRow
from pyarctic.ams.store import Query
from pyarctic.logs import get_logger
from pyarctic.server.documents import Document
from pyarctic.server.service import Lead, Service

router = APIRouter(tags=["probes"])
_log = get_logger(__name__)
_MAX_OVERDUE_SECONDS = 60.0
_MAX_BLOCKED_SECONDS = 600.0
"""Looks at large tables and commits to them take minutes. Only if all threads are busy for longer, nothing goes on."""


class CrewState(Document):
    """What a crew works on: threads for several tables at a time."""

    name: str
    """`looks`, `commits` and `cleaning` work on tables, `discover` on catalogs."""
    running: int
    """How many are worked on now."""
    oldest_seconds: float
    """For how long the first of them is; many minutes tell that a catalog or storage does not answer."""
    oldest_catalog: str | None
    """The catalog of that one; null: nothing is worked on."""


class Readiness(Document):
    """Whether the service does its work."""

    ready: bool
    role: Literal["leader", "standby"]
    """A service that stands by answers reads, and takes over when the leader is silent."""
    leader: str | None
    """Where the leader is; null: none is for the moment."""
    problems: list[str]
    """What does not work: the database, loops that are silent, or crews without a thread that is free."""
    crews: list[CrewState]
    """A catalog that hangs is seen here. It holds up its own tables, and the service is ready."""


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Tell that the process is up."""
    return {"status": "up"}


@router.get("/readyz", responses={503: {"model": Readiness}})
def readyz(service: Service, leadership: Lead, response: Response) -> Readiness:
    """Tell whether the database answers, all loops turn, and work can begin; and for how long work goes on."""
    leads = leadership is None or leadership.is_leading
    problems = [f"the loop {loop.name} is silent" for loop in service.loops if loop.overdue_seconds > _MAX_OVERDUE_SECONDS]
    problems += [f"the crew {crew.name} is stuck" for crew in service.crews if crew.blocked_seconds > _MAX_BLOCKED_SECONDS]
    if leads and not service.loops:
        problems.append("the loops have not been started")
    try:
        with service.core.store.read() as view:
            view.find(EventRow, Query(limit=1))
    except Exception as error:  # noqa: BLE001  # of any database
        _log.warning("store_not_read", reason=f"{type(error).__name__}: {error}")
        problems.append("the database does not answer")
    response.status_code = 503 if problems else 200
    return Readiness(
        ready=not problems,
        role="leader" if leads else "standby",
        leader=None if leadership is None else leadership.leader_url or None,
        problems=problems,
        crews=[_state_of(crew) for crew in service.crews],
    )


def _state_of(crew: Crew) -> CrewState:
    running = crew.running
    return CrewState(
        name=crew.name,
        running=len(running),
        oldest_seconds=round(running[0].seconds, 1) if running else 0.0,
        oldest_catalog=running[0].job.catalog if running else None,
    )
