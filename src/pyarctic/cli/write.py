"""`arctic table write`: write the rows of files to a table in one commit."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyarctic.cli.session import (
    Format,
    FormatOption,
    JsonOption,
    TableArgument,
    WideOption,
    note,
    resolve_format,
    shows_progress,
)
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit
from pyarctic.errors import UsageError
from pyarctic.units import format_count

if TYPE_CHECKING:
    from rich.status import Status

    from pyarctic.tables import Table
    from pyarctic.tables.write import InputFile

WRITE_COLUMNS = (
    Column("table", "Table", priority=0, identity=True),
    Column("mode", "Mode"),
    Column("rows", "Rows", "count", priority=0),
    Column("files", "Files read", "count", priority=2),
    Column("store", "Store", priority=2),
    Column("snapshot_id", "Snapshot", "id", priority=0),
)


class Mode(enum.StrEnum):
    """How rows are written."""

    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete"
    CDC = "cdc"
    OVERWRITE = "overwrite"


class InputFormat(enum.StrEnum):
    """The format of the input files."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


class Replace(enum.StrEnum):
    """What an overwrite replaces."""

    TABLE = "table"
    PARTITIONS = "partitions"


def write(  # long: option declarations
    name: TableArgument,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Parquet, CSV or JSON lines; - is standard input.", show_default=False),
    ],
    mode: Annotated[
        Mode, typer.Option("--mode", help="How to write the rows; all modes but insert and overwrite require a primary key.")
    ] = Mode.INSERT,
    across_partitions: Annotated[
        bool, typer.Option("--across-partitions", help="Upsert and delete: also affect the same keys in other partitions.")
    ] = False,
    replace: Annotated[
        Replace, typer.Option("--replace", help="Overwrite: replace all rows, or only the partitions that receive rows.")
    ] = Replace.TABLE,
    where: Annotated[
        str | None, typer.Option("--where", metavar="EXPR", help="Overwrite: replace the matching partitions.")
    ] = None,
    input_format: Annotated[
        InputFormat | None, typer.Option("--input-format", help="Format of the files (default: from the file names).")
    ] = None,
    once: Annotated[
        str | None,
        typer.Option("--once", metavar="JOB:N", help="Step N of a job: nothing is written if the table has it already."),
    ] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Write the rows of files to a table in one commit.

    \b
    Examples:
      arctic table write demo.shop.orders orders.csv --mode upsert
      arctic table write demo.shop.orders - --input-format jsonl < orders.jsonl

    Columns are matched by name. Mode delete requires the key and partition columns only; mode cdc requires a column
    _change_action with INSERT, UPDATE_BEFORE, UPDATE_AFTER or DELETE.
    """
    from pyarctic.tables import open_table

    resolved_format = resolve_format(output_format, as_json)
    step = None if once is None else _parse_once(once)
    inputs = _open_inputs(paths, input_format)
    table = open_table(name)
    with _count_batches(table, inputs) as batches:
        snapshot_id = table.write(
            batches, mode.value, across_partitions=across_partitions, replace=replace.value, where=where, once=step
        )
    row = {
        "table": name,
        "mode": mode.value,
        "rows": batches.row_count,
        "files": len(paths),
        "store": "change" if table.kind == "keyed" and mode is not Mode.OVERWRITE else "base",
        "snapshot_id": None if snapshot_id is None else str(snapshot_id),
        "done_before": step is not None and snapshot_id is None,
    }
    emit(Frame(columns=WRITE_COLUMNS, rows=[row], document=row), output_format=resolved_format, wide=wide)
    if step is not None and snapshot_id is None:
        note(f"step {step[1]} of job {step[0]} was written before: nothing was changed")
    elif snapshot_id is None:
        note("no rows to write: nothing was changed")


def _parse_once(text: str) -> tuple[str, int]:
    job, _, number = text.rpartition(":")
    if not job or not number.isdecimal():
        raise UsageError(f"{text!r} is not a step of a job", hint="Write it as: --once my-job:42.")
    return job, int(number)


def _open_inputs(paths: Sequence[str], input_format: InputFormat | None) -> list[InputFile]:
    from pyarctic.tables.write import open_input_file

    if paths.count("-") > 1:
        raise UsageError("standard input is given twice", hint="Give `-` once: it can be read only once.")
    format_name = input_format.value if input_format else None
    return [open_input_file(path, format_name, sys.stdin.buffer if path == "-" else None) for path in paths]


class _CountedBatches:
    """The batches of the input files; counts rows and shows progress as they are consumed."""

    def __init__(self, table: Table, inputs: Sequence[InputFile], status: Status | None) -> None:
        self._table = table
        self._inputs = inputs
        self._status = status
        self._started = time.monotonic()
        self.row_count = 0

    def __iter__(self) -> Iterator[Any]:
        for number, file in enumerate(self._inputs, 1):
            for batch in file.batches(self._table.schema):
                self.row_count += batch.num_rows
                self._show_progress(f"{file.name}, file {number} of {len(self._inputs)}")
                yield batch
        self._show_progress("committing")

    def _show_progress(self, step: str) -> None:
        if self._status is not None:
            from rich.text import Text

            rows_per_second = int(self.row_count / max(time.monotonic() - self._started, 0.001))
            self._status.update(Text(f"{step}: {format_count(self.row_count)} rows, {format_count(rows_per_second)}/s"))


@contextmanager
def _count_batches(table: Table, inputs: Sequence[InputFile]) -> Iterator[_CountedBatches]:
    if not shows_progress():
        yield _CountedBatches(table, inputs, None)
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield _CountedBatches(table, inputs, status)
