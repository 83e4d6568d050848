"""`arctic table explain`, `optimize` and `rollback`."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyarctic.cli.errors import NEGATIVE_RESULT
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
    confirm,
    note,
    resolve_format,
    spinner,
)
from pyarctic.cli.view.explain_page import render_explanation
from pyarctic.cli.view.output import DEFAULT_ROW_LIMIT, emit_details
from pyarctic.cli.view.report_page import closing_notes, render_report, render_rollback

if TYPE_CHECKING:
    from pyarctic.optimizing import Report
    from pyarctic.optimizing.commit import Rollback
    from pyarctic.optimizing.plan import Explanation


class Kind(enum.StrEnum):
    """The kind of optimizing: `KindChoice` of `pyarctic.optimizing`, which is too heavy to import for `--help`."""

    AUTO = "auto"
    MINOR = "minor"
    MAJOR = "major"
    FULL = "full"


class Engine(enum.StrEnum):
    """Where tasks run."""

    LOCAL = "local"
    SPARK = "spark"


KindOption = Annotated[
    Kind, typer.Option("--kind", help="`auto` follows the rules; another kind is applied wherever it would help.")
]
PartitionsOption = Annotated[
    str | None, typer.Option("--where", metavar="EXPR", help="Only partitions that may contain matching rows.")
]
IgnoreWritersOption = Annotated[
    bool, typer.Option("--ignore-writers", help="Do not wait for writers that change rows in the same partitions.")
]


def explain(
    name: TableArgument,
    kind: KindOption = Kind.AUTO,
    where: PartitionsOption = None,
    ignore_writers: IgnoreWritersOption = False,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """Show what `optimize` would do now, and why.

    \b
    Example:
      arctic table explain demo.shop.orders
    """
    explanation = _explain(name, kind, where, ignore_writers=ignore_writers)
    _show_explanation(explanation, resolve_format(output_format, as_json), limit=limit, wide=wide, absolute=absolute)


def optimize(
    name: TableArgument,
    kind: KindOption = Kind.AUTO,
    engine: Annotated[Engine, typer.Option("--engine", help="Where tasks run.")] = Engine.LOCAL,
    where: PartitionsOption = None,
    dry_run: DryRunOption = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the content of all rows read and written, by hash.")
    ] = False,
    ignore_writers: IgnoreWritersOption = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, metavar="N", help="Number of concurrent tasks (default: number of cores)."),
    ] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Merge small files, apply and convert deletes.

    \b
    Example:
      arctic table optimize demo.shop.orders --dry-run

    The exit code is 1 if a task failed. The results of the other tasks are kept.
    """
    resolved_format = resolve_format(output_format, as_json)
    if dry_run and resolved_format in (Format.TABLE, Format.MARKDOWN):
        explanation = _explain(name, kind, where, ignore_writers=ignore_writers)
        _show_explanation(explanation, resolved_format, limit=None, wide=wide, absolute=False)
        note("dry run: nothing was changed")
        return
    report, failed_partitions = _optimize(
        name, kind.value, engine.value, where, dry_run, verify=verify, ignore_writers=ignore_writers, workers=workers
    )
    sections = list(render_report(report, failed_partitions))
    emit_details(report.to_dict(), sections, output_format=resolved_format, absolute=False, wide=wide)
    if dry_run:
        note("dry run: nothing was changed")
    for line in closing_notes(report):
        note(line)
    if report.failures:
        raise typer.Exit(NEGATIVE_RESULT)


def _optimize(name: str, *arguments: Any, **options: Any) -> tuple[Report, list[str]]:
    """Call `pyarctic.optimize` and show its progress; return the report and the partitions of failed tasks."""
    from pyarctic import optimize as optimize_table
    from pyarctic.cli.view.progress import make_waits_interruptible, watch_progress

    make_waits_interruptible()
    try:
        with watch_progress(name) as listener:
            return optimize_table(name, *arguments, listener=listener, **options), listener.failed
    except KeyboardInterrupt:
        note("interrupted: committed tasks are kept, the rest of the table is unchanged")
        raise


def rollback(
    name: TableArgument,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="SNAPSHOT", help="Target snapshot (default: before the last `optimize`)."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Undo the last `optimize`.

    \b
    Example:
      arctic table rollback demo.shop.orders --dry-run

    The rows of the table do not change. If the table has been written to since, it refuses with exit code 4.
    """
    from pyarctic.optimizing.commit import roll_back
    from pyarctic.tables import open_table

    with spinner(f"reading {name}"):
        table = open_table(name)
        result = roll_back(table, to, dry_run=True)
    if not dry_run:
        confirm(_confirmation_text(result), yes=yes)
        with spinner(f"rolling {name} back"):
            # To the snapshot that was shown, even if the table has changed since.
            result = roll_back(table.refresh(), result.to_snapshot_id)
    emit_details(
        result.to_dict(),
        [render_rollback(result)],
        output_format=resolve_format(output_format, as_json),
        absolute=False,
        wide=wide,
    )
    if dry_run:
        note("dry run: nothing was changed")


def _explain(name: str, kind: Kind, where: str | None, *, ignore_writers: bool) -> Explanation:
    from pyarctic.optimizing import Options, explain_table
    from pyarctic.tables import open_table

    with spinner(f"planning {name}"):
        return explain_table(open_table(name), Options(kind=kind.value, where=where, ignore_writers=ignore_writers))


def _show_explanation(
    explanation: Explanation, output_format: Format, *, limit: int | None, wide: bool, absolute: bool
) -> None:
    max_rows = DEFAULT_ROW_LIMIT if limit is None else limit
    sections = list(render_explanation(explanation, max_rows))
    emit_details(explanation.to_dict(), sections, output_format=output_format, absolute=absolute, wide=wide)
    if output_format is Format.TABLE and max_rows and len(explanation.tasks) > max_rows:
        note(f"{max_rows} of {len(explanation.tasks):,} tasks; `arctic table explain --limit 0` shows all")


def _confirmation_text(planned: Rollback) -> str:
    return f"{planned.table} will be rolled back from snapshot {planned.from_snapshot_id} to {planned.to_snapshot_id}"
