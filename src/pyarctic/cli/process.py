"""`arctic process` and `arctic task`: what the management service does."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from pyarctic.cli.errors import NEGATIVE_RESULT
from pyarctic.cli.remote import PROCESS_COLUMNS, TASK_COLUMNS, TokenFileOption, UrlOption, open_client, with_times
from pyarctic.cli.session import (
    AbsoluteOption,
    Format,
    FormatOption,
    JsonOption,
    LimitOption,
    WideOption,
    new_command_group,
    note,
    resolve_format,
)
from pyarctic.cli.view.facts import facts_section
from pyarctic.cli.view.output import DEFAULT_ROW_LIMIT, Frame, Section, emit, emit_details

group = new_command_group(
    "Look at processes of the service, and steer them.\n\n\b\nExamples:\n  arctic process ls\n  arctic process cancel ID"
)
tasks = new_command_group("Look at tasks of the service.\n\n\b\nExamples:\n  arctic task ls\n  arctic task show ID")

ProcessArgument = Annotated[str, typer.Argument(metavar="PROCESS", help="The id of a process.", show_default=False)]
StateOption = Annotated[list[str] | None, typer.Option("--state", metavar="STATE", help="Only those in this state.")]
_WATCH_SECONDS = 1.0


@group.command("ls")
def ls(
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Only those of this table.")] = None,
    state: StateOption = None,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """List processes, the newest first.

    \b
    Examples:
      arctic process ls
      arctic process ls --table demo.shop.orders --state running
    """
    resolved = resolve_format(output_format, as_json)
    with open_client(url, token_file) as client:
        rows = [with_times(row) for row in client.processes(table, state=state, limit=limit or DEFAULT_ROW_LIMIT)]
    frame = Frame(columns=PROCESS_COLUMNS, rows=rows, noun="processes")
    emit(frame, output_format=resolved, wide=wide, absolute=absolute, limit=limit)


@group.command("show")
def show(
    process: ProcessArgument,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """Show a process with its tasks.

    \b
    Examples:
      arctic process show ID
      arctic process show ID --json
    """
    with open_client(url, token_file) as client:
        document = with_times(client.process(process))
        rows = [with_times(row) for row in client.tasks(process)]
    facts = [(name.replace("_", " "), document[name]) for name in _SHOWN if document.get(name) is not None]
    sections = [facts_section(None, facts), Section(title="Tasks", frame=Frame(columns=TASK_COLUMNS, rows=rows))]
    resolved = resolve_format(output_format, as_json)
    document = {**document, "task_list": rows, "name": process}
    emit_details(document, sections, output_format=resolved, absolute=absolute, wide=wide)


_SHOWN = ("id", "table", "kinds", "state", "trigger", "outcome", "created_at", "started_at", "ended_at")


@group.command("watch")
def watch(process: ProcessArgument, url: UrlOption = None, token_file: TokenFileOption = None) -> None:
    """Follow a process until it has ended.

    \b
    Examples:
      arctic process watch ID
      arctic process watch ID --url http://10.0.0.5:1630

    The exit code is 1 unless all of it is in the table.
    """
    with open_client(url, token_file) as client:
        last: dict[str, Any] | None = None
        while True:
            found = client.process(process)
            shown = {"state": found["state"], **found["task_states"]}
            if shown != last:
                counts = ", ".join(f"{count} {state}" for state, count in found["task_states"].items())
                note(f"{found['state']}: {counts or 'no tasks'}")
                last = shown
            if found["ended_at"] is not None:
                break
            time.sleep(_WATCH_SECONDS)
    _finish(found)


def _finish(process: dict[str, Any]) -> None:
    note(f"{process['state']}: {process['outcome']}")
    if process["state"] != "succeeded":
        raise typer.Exit(NEGATIVE_RESULT)


@group.command("cancel")
def cancel(
    process: ProcessArgument,
    why: Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, for the history.")] = None,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up what has not landed of a process.

    \b
    Examples:
      arctic process cancel ID
      arctic process cancel ID --why "the nightly load runs"
    """
    with open_client(url, token_file) as client:
        _show_one(client.cancel(process, why), as_json=as_json)


@group.command("retry")
def retry(
    process: ProcessArgument, url: UrlOption = None, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Plan the table of a process anew.

    \b
    Examples:
      arctic process retry ID
      arctic process retry ID --json
    """
    with open_client(url, token_file) as client:
        planned = client.retry(process)
    if planned is None:
        note("there is nothing to do")
    else:
        _show_one(planned, as_json=as_json)


def _show_one(process: dict[str, Any], *, as_json: bool) -> None:
    row = with_times(process)
    frame = Frame(columns=PROCESS_COLUMNS, rows=[row], document=row)
    emit(frame, output_format=Format.JSON if as_json else Format.TABLE)


@tasks.command("ls")
def ls_tasks(
    process: Annotated[str | None, typer.Option("--process", metavar="ID", help="Only those of this process.")] = None,
    state: StateOption = None,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """List tasks.

    \b
    Examples:
      arctic task ls --state executing
      arctic task ls --process ID
    """
    resolved = resolve_format(output_format, as_json)
    with open_client(url, token_file) as client:
        rows = [with_times(row) for row in client.tasks(process, state=state, limit=limit or DEFAULT_ROW_LIMIT)]
    frame = Frame(columns=TASK_COLUMNS, rows=rows, noun="tasks")
    emit(frame, output_format=resolved, wide=wide, absolute=absolute, limit=limit)


@tasks.command("show")
def show_task(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The id of a task.", show_default=False)],
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """Show a task with its failures.

    \b
    Examples:
      arctic task show ID
      arctic task show ID --json
    """
    with open_client(url, token_file) as client:
        document = with_times(client.task(task))
    facts = [(name.replace("_", " "), value) for name, value in document.items() if name != "failures" and value is not None]
    failures = [(f"attempt {failure['attempt']}", failure["detail"]) for failure in document["failures"]]
    sections = [facts_section(None, facts), facts_section("Failures", failures)]
    resolved = resolve_format(output_format, as_json)
    emit_details({**document, "name": task}, sections, output_format=resolved, absolute=absolute, wide=wide)
