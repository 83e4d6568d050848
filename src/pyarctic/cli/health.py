"""`arctic table health`: the health of tables, the worst first."""

from __future__ import annotations

from typing import Annotated

import typer

from pyarctic.cli.errors import NEGATIVE_RESULT
from pyarctic.cli.session import Format, FormatOption, JsonOption, LimitOption, WideOption, note, resolve_format
from pyarctic.cli.several import PATTERN_HINT
from pyarctic.cli.view.health_page import HEALTH_COLUMNS, error_notes, health_row, summarize, watch_health
from pyarctic.cli.view.output import Frame, emit
from pyarctic.errors import NotFound
from pyarctic.units import format_quantity


def health(  # long: option declarations
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE...]", help="Names or patterns: 'demo.*.orders*' (default: all tables)."),
    ] = None,
    fail_below: Annotated[
        float | None,
        typer.Option(
            "--fail-below", metavar="N", min=0, max=100, help="Exit with code 1 if a table has less than N points."
        ),
    ] = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Show the health of tables, the worst first.

    \b
    Examples:
      arctic table health
      arctic table health 'demo.shop.*' --fail-below 60

    Shows what costs points and what optimizing would take. A table with 100 points has so few small files and deletes that
    no rule calls for optimizing. Nothing is changed. The exit code is 0 if all tables could be evaluated and have at least
    the points of --fail-below, otherwise 1. A table that cannot be evaluated does not stop the others.
    """
    from pyarctic import health as evaluate

    resolved_format = resolve_format(output_format, as_json)
    with watch_health() as listener:
        report = evaluate(patterns or "*", listener=listener)
    if patterns and not report:
        raise NotFound(f"no table matches {' or '.join(map(repr, patterns))}", hint=PATTERN_HINT)
    documents = [table.to_dict() for table in report]
    frame = Frame(
        columns=HEALTH_COLUMNS,
        rows=map(health_row, report),
        noun="tables",
        total=len(report),
        remark=summarize(report),
        document=documents[: limit or None],
    )
    emit(frame, output_format=resolved_format, wide=wide, limit=limit)
    for line in error_notes(report) if resolved_format is not Format.JSON else ():
        note(line, style="yellow")
    below = [table for table in report if fail_below is not None and table.score is not None and table.score < fail_below]
    if below:
        note(f"{format_quantity(len(below), 'table')} below {fail_below:g}")
    if below or report.failures:
        raise typer.Exit(NEGATIVE_RESULT)
