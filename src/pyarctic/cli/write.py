"""`arctic table write`: rows of files into a table, by one commit."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyarctic.cli.session import Format, FormatOption, JsonOption, TableArgument, chosen, note, progress_wanted
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
    """What becomes of the rows."""

    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete"
    CDC = "cdc"
    OVERWRITE = "overwrite"


class InputFormat(enum.StrEnum):
    """What the files are."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


class Replace(enum.StrEnum):
    """What an overwrite replaces."""

    TABLE = "table"
    PARTITIONS = "partitions"


def write(
    name: TableArgument,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Parquet, CSV or JSON lines; - is standard input.", show_default=False),
    ],
    mode: Annotated[
        Mode, typer.Option("--mode", help="What becomes of the rows; all but insert and overwrite need a primary key.")
    ] = Mode.INSERT,
    across_partitions: Annotated[
        bool, typer.Option("--across-partitions", help="Upsert, delete: also rows of the same keys in other partitions.")
    ] = False,
    replace: Annotated[
        Replace, typer.Option("--replace", help="Overwrite: all rows, or those of the partitions that get rows.")
    ] = Replace.TABLE,
    where: Annotated[
        str | None, typer.Option("--where", metavar="EXPR", help="Overwrite: the partitions for which this holds.")
    ] = None,
    input_format: Annotated[
        InputFormat | None, typer.Option("--input-format", help="What the files are, if their names do not tell.")
    ] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Write the rows of files to a table, by one commit.

    \b
    Example:
      arctic table write demo.shop.orders orders.csv --mode upsert

    Columns are found by their names. Mode delete needs the key and partition columns only; cdc needs a column
    _change_action: INSERT, UPDATE_BEFORE, UPDATE_AFTER or DELETE.
    """
    from pyarctic.tables import open_table
    from pyarctic.tables.write import open_input_file

    wanted = chosen(output_format, as_json)
    if paths.count("-") > 1:
        raise UsageError("standard input is named twice", hint="It can be read once.")
    told = input_format.value if input_format else None
    inputs = [open_input_file(path, told, sys.stdin.buffer if path == "-" else None) for path in paths]
    table = open_table(name)
    with _counted(table, inputs) as rows:
        snapshot_id = table.write(rows, mode.value, across_partitions=across_partitions, replace=replace.value, where=where)
    store = "change" if table.kind == "keyed" and mode is not Mode.OVERWRITE else "base"
    done = {
        "table": name,
        "mode": mode.value,
        "rows": rows.count,
        "files": len(paths),
        "store": store,
        "snapshot_id": None if snapshot_id is None else str(snapshot_id),
    }
    emit(Frame(columns=WRITE_COLUMNS, rows=[done], document=done), output_format=wanted)
    if snapshot_id is None:
        note("there was nothing to write: nothing was changed")


class _Counted:
    """The batches of some files, counted as they are taken."""

    def __init__(self, table: Table, inputs: Sequence[InputFile], status: Status | None) -> None:
        self._table = table
        self._inputs = inputs
        self._status = status
        self._started = time.monotonic()
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        for number, file in enumerate(self._inputs, 1):
            for batch in file.batches(self._table.schema):
                self.count += batch.num_rows
                self._tell(f"{file.name}, file {number} of {len(self._inputs)}")
                yield batch
        self._tell("committing")

    def _tell(self, what: str) -> None:
        if self._status is not None:
            from rich.text import Text

            speed = self.count / max(time.monotonic() - self._started, 0.001)
            self._status.update(Text(f"{what}: {format_count(self.count)} rows, {format_count(int(speed))}/s"))


@contextmanager
def _counted(table: Table, inputs: Sequence[InputFile]) -> Iterator[_Counted]:
    if not progress_wanted():
        yield _Counted(table, inputs, None)
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield _Counted(table, inputs, status)
