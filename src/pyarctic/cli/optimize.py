"""`arctic table explain` and `optimize`, of one table or several."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    TablesArgument,
    WideOption,
    note,
    resolve_format,
    shows_progress,
    spinner,
)
from pyarctic.cli.several import Outcome, exit_on_failure, is_several, resolve_names, run_each
from pyarctic.cli.steer import optimize_remotely, service_notes
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.explain_page import render_explanation
from pyarctic.cli.view.output import DEFAULT_ROW_LIMIT, Frame, emit, emit_details, write_heading
from pyarctic.cli.view.report_page import closing_notes, idle_notes, render_report
from pyarctic.cli.view.summary_page import EXPLANATION_COLUMNS, REPORT_COLUMNS, explanation_rows, report_rows
from pyarctic.errors import UsageError

if TYPE_CHECKING:
    from pyarctic.optimizing import Report
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
    names: TablesArgument,
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
    Examples:
      arctic table explain demo.shop.orders
      arctic table explain 'demo.shop.*' --json

    Of several tables all pages are shown, then a summary; with --json they are a list. The exit code is 1 if a table cannot
    be explained; the others still are.
    """
    options: dict[str, Any] = {"kind": kind.value, "where": where, "ignore_writers": ignore_writers}
    resolved_format = resolve_format(output_format, as_json)
    _explain_all(names, options, _Pages(output_format=resolved_format, limit=limit, wide=wide, absolute=absolute))


def optimize(  # long: option declarations
    names: TablesArgument,
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
    remote: Annotated[bool, typer.Option("--remote", help="Let the service at $ARCTIC_URL do it.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --remote: until the process has ended.")] = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Merge small files, apply and convert deletes.

    \b
    Examples:
      arctic table optimize demo.shop.orders --dry-run
      arctic table optimize 'demo.shop.*' --workers 2

    Several tables are optimized one after the other, and a summary is shown; with --json the reports are a list. The exit
    code is 1 if a task or a table failed. The results of the other tasks and tables are kept.
    """
    resolved_format = resolve_format(output_format, as_json)
    if remote or wait:
        chosen = {"--where": where, "--dry-run": dry_run, "--verify": verify, "--workers": workers}
        _refuse_with_remote(chosen, remote=remote)
        optimize_remotely(names, kind.value, wait=wait, output_format=resolved_format)
        return
    options: dict[str, Any] = {"kind": kind.value, "where": where, "ignore_writers": ignore_writers}
    pages = _Pages(output_format=resolved_format, limit=None, wide=wide, absolute=False)
    if dry_run and pages.output_format in (Format.TABLE, Format.MARKDOWN):
        _explain_all(names, options, pages)
        note("dry run: nothing was changed")
        return
    options |= {"engine": engine.value, "dry_run": dry_run, "verify": verify, "workers": workers}
    _optimize_all(names, options, pages)


def _refuse_with_remote(options: Mapping[str, object], *, remote: bool) -> None:
    """The service decides how and where tasks run."""
    if not remote:
        raise UsageError("--wait is for --remote only", hint="Without --remote the command waits anyway.")
    given = [name for name, value in options.items() if value]
    if given:
        raise UsageError(f"{given[0]} cannot be combined with --remote", hint="Leave one of them out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pages:
    """How results are shown."""

    output_format: Format
    limit: int | None
    wide: bool
    absolute: bool

    def show_explanation(self, explanation: Explanation) -> None:
        max_rows = DEFAULT_ROW_LIMIT if self.limit is None else self.limit
        sections = list(render_explanation(explanation, max_rows))
        document = explanation.to_dict()
        emit_details(document, sections, output_format=self.output_format, absolute=self.absolute, wide=self.wide)
        for line in service_notes(explanation.table):
            note(line)
        if self.output_format is Format.TABLE and max_rows and len(explanation.tasks) > max_rows:
            note(f"{max_rows} of {len(explanation.tasks):,} tasks; `arctic table explain --limit 0` shows all")

    def show_report(self, report: Report, failed_partitions: Sequence[str], *, kind: str) -> None:
        sections = list(render_report(report, failed_partitions))
        emit_details(report.to_dict(), sections, output_format=self.output_format, absolute=False, wide=self.wide)
        for line in (*idle_notes(report, kind=kind), *closing_notes(report)):
            note(line)

    def show_summary(
        self, columns: Sequence[Column], rows: Iterator[dict[str, Any]], outcomes: Sequence[Outcome[Any]]
    ) -> None:
        documents = [outcome.to_dict(lambda result: result.to_dict()) for outcome in outcomes]
        frame = Frame(columns=columns, rows=rows, noun="tables", document=documents)
        emit(frame, output_format=self.output_format, wide=self.wide, limit=0)


def _explain_all(words: Sequence[str], options: dict[str, Any], pages: _Pages) -> None:
    if not is_several(words):
        pages.show_explanation(_explain(words[0], words[0], options))
        return
    shows_pages = pages.output_format in (Format.TABLE, Format.MARKDOWN)

    def run(name: str, label: str) -> Explanation:
        explanation = _explain(name, label, options)
        if shows_pages:
            pages.show_explanation(explanation)
            write_heading("")
        return explanation

    outcomes = run_each(resolve_names(words), run, as_json=pages.output_format is Format.JSON)
    if shows_pages:
        write_heading("Summary", markdown=pages.output_format is Format.MARKDOWN)
    pages.show_summary(EXPLANATION_COLUMNS, explanation_rows(outcomes), outcomes)
    exit_on_failure(outcomes)


def _explain(name: str, label: str, options: dict[str, Any]) -> Explanation:
    from pyarctic import explain as explain_table

    with spinner(f"planning {label}"):
        return explain_table(name, **options)


def _optimize_all(words: Sequence[str], options: dict[str, Any], pages: _Pages) -> None:
    if not is_several(words):
        report, failed_partitions = _optimize(words[0], words[0], options)
        pages.show_report(report, failed_partitions, kind=options["kind"])
        failed = bool(report.failures)
    else:
        outcomes = run_each(
            resolve_names(words),
            lambda name, label: _optimize(name, label, options)[0],
            as_json=pages.output_format is Format.JSON,
        )
        pages.show_summary(REPORT_COLUMNS, report_rows(outcomes), outcomes)
        exit_on_failure(outcomes, lambda report: bool(report.failures))
        failed = False
    if options["dry_run"]:
        note("dry run: nothing was changed")
    if failed:
        raise typer.Exit(NEGATIVE_RESULT)


def _optimize(name: str, label: str, options: dict[str, Any]) -> tuple[Report, list[str]]:
    """Call `pyarctic.optimize` and show its progress; return the report and the partitions of failed tasks."""
    from pyarctic import optimize as optimize_table
    from pyarctic.cli.view.progress import make_waits_interruptible, watch_progress

    if label != name and not shows_progress():
        note(label)
    make_waits_interruptible()
    try:
        with watch_progress(label) as listener:
            return optimize_table(name, listener=listener, **options), listener.failed
    except KeyboardInterrupt:
        note("interrupted: committed tasks are kept, the rest of the table is unchanged")
        raise
