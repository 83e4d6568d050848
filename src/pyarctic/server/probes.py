"""Whether the process is up, and whether it does its work: for those who restart it and send it requests."""

from __future__ import annotations

from fastapi import APIRouter, Response

from pyarctic.ams import EventRow
from pyarctic.ams.store import Query
from pyarctic.logs import get_logger
from pyarctic.server.documents import Document
from pyarctic.server.service import Service

router = APIRouter(tags=["probes"])
_log = get_logger(__name__)
_MAX_OVERDUE_SECONDS = 60.0


class Readiness(Document):
    """Whether the service does its work."""

    ready: bool
    problems: list[str]
    """What does not work: the database, or loops that are silent."""


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Tell that the process is up."""
    return {"status": "up"}


@router.get("/readyz", responses={503: {"model": Readiness}})
def readyz(service: Service, response: Response) -> Readiness:
    """Tell whether the database answers and all loops turn."""
    problems = [f"the loop {loop.name} is silent" for loop in service.loops if loop.overdue_seconds > _MAX_OVERDUE_SECONDS]
    if not service.loops:
        problems.append("the loops have not been started")
    try:
        with service.core.store.read() as view:
            view.find(EventRow, Query(limit=1))
    except Exception as error:  # noqa: BLE001  # of any database
        _log.warning("store_not_read", reason=f"{type(error).__name__}: {error}")
        problems.append("the database does not answer")
    response.status_code = 503 if problems else 200
    return Readiness(ready=not problems, problems=problems)
