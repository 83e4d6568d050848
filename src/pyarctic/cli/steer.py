"""Commands about one table that a management service carries out: pause, resume, optimize, and what it knows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pyarctic.cli.errors import NEGATIVE_RESULT
from pyarctic.cli.remote import PROCESS_COLUMNS, TokenFileOption, UrlOption, open_client, with_times
from pyarctic.cli.session import Format, JsonOption, TableArgument, note, spinner
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit
from pyarctic.errors import ArcticError, UsageError
from pyarctic.units import parse_duration

_COLUMNS = (
    Column("name", "Table", priority=0, identity=True),
    Column("state", "State", "state", priority=0),
    Column("paused_by", "Paused by", priority=2, optional=True),
    Column("pause_reason", "Why", priority=3, fit="wrap", optional=True),
    Column("paused_until", "Until", "time", priority=2, optional=True),
    Column("next_look_at", "Next look", "time", priority=4),
)


def pause(
    name: TableArgument,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, for others to read.")] = None,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Such as 2h (default: until it is resumed).")
    ] = None,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the service plan nothing for a table.

    \b
    Examples:
      arctic table pause demo.shop.orders --for 2h --why "a large load"
      arctic table pause demo.shop.orders

    What is executed is finished and committed.
    """
    with open_client(url, token_file) as client:
        _show(client.table(name).pause(why, _end_of(duration)), as_json=as_json)


def resume(
    name: TableArgument, url: UrlOption = None, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Let the service optimize a table again.

    \b
    Examples:
      arctic table resume demo.shop.orders
      arctic table resume demo.shop.orders --json
    """
    with open_client(url, token_file) as client:
        _show(client.table(name).resume(), as_json=as_json)


def _show(table: dict[str, Any], *, as_json: bool) -> None:
    row = with_times(table)
    emit(Frame(columns=_COLUMNS, rows=[row], document=row), output_format=Format.JSON if as_json else Format.TABLE)


def _end_of(duration: str | None) -> datetime | None:
    if duration is None:
        return None
    try:
        return datetime.now(UTC) + parse_duration(duration)
    except ValueError:
        raise UsageError(f"{duration!r} is not a duration", hint="Write it as 30min, 2h or 1d.") from None


def optimize_remotely(names: Sequence[str], kind: str, *, wait: bool, output_format: Format) -> None:
    """Let the service plan tables now, and show the processes."""
    processes: list[dict[str, Any]] = []
    with open_client(None, None) as client:
        for name in names:
            with spinner(f"the service optimizes {name}"):
                process = client.table(name).optimize(kind, wait=wait)  # type: ignore[arg-type]
            if process is None:
                note(f"{name}: there is nothing to do")
            else:
                processes.append(with_times(process))
    emit(Frame(columns=PROCESS_COLUMNS, rows=processes, noun="processes", total=len(processes)), output_format=output_format)
    if any(process["state"] not in ("waiting", "running", "succeeded") for process in processes):
        raise typer.Exit(NEGATIVE_RESULT)


def service_notes(name: str) -> Iterator[str]:
    """What a service knows of a table, if there is one: its next look, and what is in the way."""
    if not os.environ.get("ARCTIC_URL"):
        return
    try:
        with open_client(None, None) as client:
            known = client.table(name).explain()["service"]
    except ArcticError as error:
        yield f"the service does not tell: {error}"
        return
    yield f"service: {known['state']}, group {known['group']}, next look at {known['next_look_at']}"
    for process in known["processes"]:
        waits = "; ".join(process["waits_for"])
        yield f"service: process {process['id']} is {process['state']}: {waits or 'it waits for nothing'}"
    for hindrance in known["hindrances"]:
        until = f", until {hindrance['until']}" if hindrance.get("until") else ""
        yield f"service: {hindrance['text']}{until}"
