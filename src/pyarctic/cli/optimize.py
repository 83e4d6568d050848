"""`arctic table explain`, `optimize` and `rollback`: why a table needs optimizing, doing it, and taking it back."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from pyarctic.cli.errors import BAD_ANSWER
from pyarctic.cli.session import (
    AbsoluteOption,
    DryRunOption,
    Format,
    FormatOption,
    JsonOption,
    LimitOption,
    TableArgument,
    WideOption,
    YesOption,
    chosen,
    confirm,
    note,
    working,
)
from pyarctic.cli.view.explain_page import explained
from pyarctic.cli.view.output import PEOPLE_LIMIT, emit_details
from pyarctic.cli.view.report_page import closing, reported, undone

if TYPE_CHECKING:
    from pyarctic.optimizing.commit import Rollback
    from pyarctic.optimizing.plan import Explanation


class KindName(enum.StrEnum):
    """How thorough."""

    AUTO = "auto"
    MINOR = "minor"
    MAJOR = "major"
    FULL = "full"


class EngineName(enum.StrEnum):
    """Where tasks run."""

    LOCAL = "local"
    SPARK = "spark"


KindOption = Annotated[
    KindName, typer.Option("--kind", help="`auto` is what the rules call for; another kind, wherever it would gain.")
]
PartitionsOption = Annotated[
    str | None, typer.Option("--where", metavar="EXPR", help="Only partitions that may hold rows for which this holds.")
]


def explain(
    name: TableArgument,
    kind: KindOption = KindName.AUTO,
    where: PartitionsOption = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """Tell what `optimize` would do now and why, or why nothing.

    \b
    Example:
      arctic table explain demo.shop.orders
    """
    found = _explanation(name, kind, where)
    _show(found, chosen(output_format, as_json), limit=limit, wide=wide, absolute=absolute)


def optimize(
    name: TableArgument,
    kind: KindOption = KindName.AUTO,
    engine: Annotated[EngineName, typer.Option("--engine", help="Where tasks run.")] = EngineName.LOCAL,
    where: PartitionsOption = None,
    dry_run: DryRunOption = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the content of all rows read and written.")] = False,
    ignore_writers: Annotated[
        bool, typer.Option("--ignore-writers", help="Do not wait for others who change rows in the same partitions.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, metavar="N", help="Tasks at a time; without it as many as there are cores."),
    ] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Merge small files, apply deletes, convert equality deletes: what the table needs.

    \b
    Example:
      arctic table optimize demo.shop.orders --dry-run

    The exit code is 1 when a task failed. What the others did stays.
    """
    wanted = chosen(output_format, as_json)
    if dry_run and wanted in (Format.TABLE, Format.MARKDOWN):
        found = _explanation(name, kind, where, ignore_writers=ignore_writers)
        _show(found, wanted, limit=None, wide=wide, absolute=False)
        note("dry run: nothing was changed")
        return
    from pyarctic import optimize as run
    from pyarctic.cli.view.progress import heed_interrupts, watching

    heed_interrupts()
    try:
        with watching(name) as watcher:
            report = run(
                name,
                kind.value,
                engine.value,
                where,
                dry_run,
                verify=verify,
                ignore_writers=ignore_writers,
                workers=workers,
                watcher=watcher,
            )
    except KeyboardInterrupt:
        note("interrupted: what was committed stays, the rest of the table is as it was")
        raise
    sections = list(reported(report, watcher.failed))
    emit_details(report.to_dict(), sections, output_format=wanted, absolute=False, wide=wide)
    if dry_run:
        note("dry run: nothing was changed")
    for line in closing(report):
        note(line)
    if report.failures:
        raise typer.Exit(BAD_ANSWER)


def rollback(
    name: TableArgument,
    to: Annotated[
        int | None, typer.Option("--to", metavar="SNAPSHOT", help="Back to this snapshot; without it, before the last run.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Take back what `optimize` did, if nobody has written since.

    \b
    Example:
      arctic table rollback demo.shop.orders --dry-run

    Rows are the same before and after. When newer data would be lost it refuses, with exit code 4.
    """
    from pyarctic.optimizing.commit import roll_back
    from pyarctic.tables import open_table

    with working(f"reading {name}"):
        table = open_table(name)
        done = roll_back(table, to, dry_run=True)
    if not dry_run:
        confirm(_told(done), yes=yes)
        with working(f"rolling {name} back"):
            # To the very snapshot that was shown, whatever has happened since.
            done = roll_back(table.refresh(), done.to_snapshot_id)
    emit_details(done.to_dict(), list(undone(done)), output_format=chosen(output_format, as_json), absolute=False)
    if dry_run:
        note("dry run: nothing was changed")


def _explanation(name: str, kind: KindName, where: str | None, *, ignore_writers: bool = False) -> Explanation:
    from pyarctic.optimizing import Options, explain_table
    from pyarctic.tables import open_table

    with working(f"looking at {name}"):
        return explain_table(open_table(name), Options(kind=kind.value, where=where, ignore_writers=ignore_writers))


def _show(found: Explanation, output_format: Format, *, limit: int | None, wide: bool, absolute: bool) -> None:
    most = PEOPLE_LIMIT if limit is None else limit
    sections = list(explained(found, most))
    emit_details(found.to_dict(), sections, output_format=output_format, absolute=absolute, wide=wide)
    if output_format is Format.TABLE and most and len(found.tasks) > most:
        note(f"{most} of {len(found.tasks):,} tasks; `arctic table explain --limit 0` shows all")


def _told(planned: Rollback) -> str:
    return f"{planned.table} goes back from snapshot {planned.from_snapshot_id} to {planned.to_snapshot_id}"
