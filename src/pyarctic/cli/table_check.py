"""`arctic table check`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pyarctic.cli.errors import NEGATIVE_RESULT
from pyarctic.cli.session import (
    DryRunOption,
    Format,
    FormatOption,
    JsonOption,
    LimitOption,
    TableArgument,
    WideOption,
    YesOption,
    confirm,
    note,
    resolve_format,
    spinner,
)
from pyarctic.cli.view.check_page import closing_notes, render_check, watch_check
from pyarctic.cli.view.output import DEFAULT_ROW_LIMIT, emit_details
from pyarctic.errors import UsageError

if TYPE_CHECKING:
    from pyarctic.tables.check import CheckReport, TableCheck


def check(
    name: TableArgument,
    rows: Annotated[
        bool,
        typer.Option(
            "--rows/--no-rows",
            help="Read all rows: keys, tree nodes, page checksums, positions of deletes. Without: footers only.",
        ),
    ] = True,
    all_snapshots: Annotated[
        bool, typer.Option("--all-snapshots", help="Check all snapshots, not only the current one.")
    ] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired without losing a row.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Check the files, metadata and rows of a table.

    \b
    Examples:
      arctic table check demo.shop.orders
      arctic table check demo.shop.orders --repair --dry-run

    All rows are read, unless --no-rows is given. The exit code is 1 if there is damage that was not repaired. Warnings and
    notes do not count.
    """
    if dry_run and not repair:
        raise UsageError(
            "--dry-run is for --repair", hint="Add --repair, or leave --dry-run out: a check alone changes nothing."
        )
    resolved_format = resolve_format(output_format, as_json)
    table_check, report = _run(name, rows=rows, all_snapshots=all_snapshots)
    if repair and report.repairs and not dry_run:
        confirm(_describe_repairs(report), yes=yes)
        with spinner(f"repairing {name}"):
            report = table_check.repair(report)
    shown = report if repair else replace(report, repairs=())
    max_rows = 0 if resolved_format not in (Format.TABLE, Format.MARKDOWN) else DEFAULT_ROW_LIMIT if limit is None else limit
    sections = list(render_check(shown, max_rows))
    emit_details(shown.to_dict(), sections, output_format=resolved_format, absolute=False, wide=wide)
    notes = closing_notes(report, repairable=len(report.repairs), repair=repair, dry_run=dry_run, max_rows=max_rows)
    for text in notes:
        note(text)
    if report.is_damaged:
        raise typer.Exit(NEGATIVE_RESULT)


def _run(name: str, *, rows: bool, all_snapshots: bool) -> tuple[TableCheck, CheckReport]:
    from pyarctic.tables.check import TableCheck

    with watch_check(name) as listener:
        table_check = TableCheck.of_name(name, rows=rows, all_snapshots=all_snapshots, listener=listener)
        return table_check, table_check.run()


def _describe_repairs(report: CheckReport) -> str:
    repairs = "; ".join(f"{repair.code}: {repair.action}" for repair in report.repairs)
    return f"{report.table} will be repaired ({repairs})"
