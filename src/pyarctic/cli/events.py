"""`arctic events`: what happened in the management service."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from pyarctic.cli.remote import EVENT_COLUMNS, TokenFileOption, UrlOption, open_client, with_times
from pyarctic.cli.session import (
    AbsoluteOption,
    Format,
    FormatOption,
    JsonOption,
    LimitOption,
    WideOption,
    new_command_group,
    resolve_format,
)
from pyarctic.cli.view.output import DEFAULT_ROW_LIMIT, Frame, emit, emit_lines

group = new_command_group(
    "See what happened in the service.\n\n\b\nExamples:\n  arctic events ls\n  arctic events ls --table demo.shop.orders"
)


@group.command("ls")
def ls(  # long: option declarations
    after: Annotated[int, typer.Option("--after", metavar="NUMBER", help="Only events after this one.")] = 0,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="table, process, task, commit or optimizer.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Only those of this object.")] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Only those about this table.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with events as they happen.")] = False,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """List what happened, the oldest first.

    \b
    Examples:
      arctic events ls --kind process
      arctic events ls --follow --format csv

    Events are the moves of tables, processes, tasks, commits and optimizers. With --follow it goes on until Ctrl-C, as lines
    of CSV, or of JSON with --json.
    """
    resolved = resolve_format(output_format, as_json)
    with open_client(url, token_file) as client:
        chosen = {"kind": kind, "key": key, "table": table}
        if follow:
            _follow(client.follow(after or None, **chosen), as_json=resolved is Format.JSON)  # type: ignore[arg-type]
            return
        found = client.events(after, **chosen)  # type: ignore[arg-type]
        rows = list(_timed(found if limit == 0 else islice(found, limit or DEFAULT_ROW_LIMIT)))
    emit(
        Frame(columns=EVENT_COLUMNS, rows=rows, noun="events"),
        output_format=resolved,
        wide=wide,
        absolute=absolute,
        limit=limit,
    )


def _follow(events: Iterator[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        emit_lines(events)
    else:
        emit(Frame(columns=EVENT_COLUMNS, rows=_timed(events)), output_format=Format.CSV)


def _timed(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (with_times(event) for event in events)
