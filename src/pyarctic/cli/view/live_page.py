"""What happens in a service, live: a page that is drawn again and again on a terminal, else a line for each event.

Imported only by the command that needs it, because it imports Rich.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pyarctic.cli.session import note, shows_progress
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.render_table import render_table
from pyarctic.units import format_quantity

if TYPE_CHECKING:
    from pyarctic.client import Client

_LAST_EVENTS = 12
_PROCESSES = 100
_COLUMNS = (
    Column("name", "Table", priority=0, fit="middle"),
    Column("kind", "Kind", priority=3),
    Column("state", "State", priority=2),
    Column("health", "Health", "number", priority=1),
    Column("data_files", "Files", "count", priority=0),
    Column("pending_files", "Deletes, changes", "count", priority=2),
    Column("work", "Now", priority=0),
    Column("last", "Last process", priority=1),
)


class View(Protocol):
    """Shows a service."""

    def show(self, client: Client, events: Sequence[Mapping[str, Any]], /) -> None:
        """Show what has happened since the last call."""
        ...


@contextmanager
def live_view(title: str) -> Iterator[View]:
    """The view that suits stderr."""
    if not shows_progress():
        yield LineView()
        return
    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield PageView(live, title)


def event_line(event: Mapping[str, Any]) -> str:
    """An event in a line."""
    time = datetime.fromisoformat(event["at"]).astimezone().strftime("%H:%M:%S")
    about = event["table"] or event["key"]
    return f"{time}  {about}  {event['kind']} {event['after']}: {event['why']}"


class LineView:
    """Prints events."""

    def show(self, _: Client, events: Sequence[Mapping[str, Any]], /) -> None:
        """Print what has happened."""
        for event in events:
            note(event_line(event))


class PageView:
    """Draws a page."""

    def __init__(self, live: Live, title: str) -> None:
        self._live = live
        self._title = title
        self._events: deque[str] = deque(maxlen=_LAST_EVENTS)

    def show(self, client: Client, events: Sequence[Mapping[str, Any]], /) -> None:
        """Draw the page again, with tables and processes as they are now."""
        self._events.extend(map(event_line, events))
        processes = client.processes(limit=_PROCESSES)
        rows = [
            table_row(table, [each for each in processes if each["table"] == table["name"]]) for table in client.tables()
        ]
        drawn = render_table(_COLUMNS, rows, datetime.now(UTC), wide=False, header=True)
        lines = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._events]
        page = Group(Text(self._title, style="bold"), Text(), Text.from_ansi(drawn.text), Text(), *lines)
        self._live.update(page, refresh=True)


def table_row(table: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of a table. `processes`: its own, the newest first."""
    files = table["files"] or {}
    deletes = ("equality_delete_files", "position_delete_files", "deletion_vectors", "change_files")
    at_work = [process for process in processes if process["ended_at"] is None]
    ended = [process for process in processes if process["ended_at"] is not None]
    return {
        **table,
        "health": None if table["health"] is None else round(table["health"]),
        "data_files": files.get("data_files"),
        "pending_files": sum(files.get(name, 0) for name in deletes) if files else None,
        "work": "; ".join(f"{_kinds(each)}, {format_quantity(each['tasks'], 'task')}" for each in at_work),
        "last": f"{_kinds(ended[0])} {ended[0]['state']}" if ended else None,
    }


def _kinds(process: Mapping[str, Any]) -> str:
    return ", ".join(process["kinds"]) or "cleaning"
