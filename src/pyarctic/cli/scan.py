"""`arctic table scan` and `changes`: the rows and the changes of a table, streamed batch by batch."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyarctic.cli.session import (
    Format,
    FormatOption,
    JsonOption,
    LimitOption,
    RefOption,
    SnapshotOption,
    TableArgument,
    WideOption,
    resolve_format,
    spinner,
)
from pyarctic.cli.table import require_at_most_one
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit
from pyarctic.errors import UsageError

if TYPE_CHECKING:
    from pyarctic.iceberg.read import RowScan


CHANGE_METADATA_COLUMNS = ("_change_action", "_transaction_id", "_file_offset")


ColumnsOption = Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")]
WhereOption = Annotated[str | None, typer.Option("--where", metavar="EXPR", help="Only matching rows.")]


class ScanStore(enum.StrEnum):
    """Which rows of a keyed table to read."""

    MERGED = "merged"
    BASE = "base"
    CHANGE = "change"


def scan(
    name: TableArgument,
    columns: ColumnsOption = None,
    where: WhereOption = None,
    store: Annotated[
        ScanStore,
        typer.Option("--store", help="Keyed tables: merged rows (one per key), the base store, or the change store."),
    ] = ScanStore.MERGED,
    snapshot: SnapshotOption = None,
    ref: RefOption = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="As of this time: ISO 8601, UTC unless it has an offset.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Only count the rows.")] = False,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Read rows of a table.

    \b
    Examples:
      arctic table scan demo.shop.orders --where "city = 'Oslo'" --limit 10
      arctic table scan demo.shop.orders --columns id,city --format csv
    """
    from pyarctic.tables import open_table

    require_at_most_one(snapshot=snapshot, ref=ref, as_of=as_of)
    timestamp = None if as_of is None else parse_timestamp(as_of)
    with spinner(f"planning the scan of {name}"):
        table = open_table(name)
        row_scan = table.scan(
            columns=_split_names(columns), where=where, snapshot_id=snapshot, ref=ref, as_of=timestamp, store=store.value
        )
    resolved_format = resolve_format(output_format, as_json)
    if count:
        with spinner(f"counting the rows of {name}"):
            total = {"count": row_scan.count()}
        column = Column("count", "Rows", "count", identity=True)
        # A single number needs no header.
        count_format = Format.NAME if resolved_format is Format.TABLE else resolved_format
        emit(Frame(columns=(column,), rows=[total], document=total), output_format=count_format)
        return
    frame = Frame(columns=_data_columns(row_scan.schema), rows=_rows(row_scan), noun="rows")
    emit(frame, output_format=resolved_format, wide=wide, absolute=True, limit=limit)


def changes(
    name: TableArgument,
    since: Annotated[
        int | None, typer.Option("--since", metavar="SNAPSHOT", help="Only changes after this snapshot of the change store.")
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", metavar="SNAPSHOT", help="Only changes up to this snapshot of the change store.")
    ] = None,
    columns: ColumnsOption = None,
    where: WhereOption = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Show the changes of a keyed table, oldest first.

    \b
    Examples:
      arctic table changes demo.shop.orders --limit 10
      arctic table changes demo.shop.orders --where "_change_action = 'DELETE'"

    These are the rows inserted and deleted since the change store was last cleaned. `table snapshots --store change`
    lists the snapshots for --since and --until.
    """
    from pyarctic.tables import open_table

    with spinner(f"reading {name}"):
        change_scan = open_table(name).changes(since=since, until=until, columns=_split_names(columns), where=where)
    shown = {column.name: column for column in _data_columns(change_scan.schema)}
    # The kind of change comes first: people read from the left.
    metadata_columns = [replace(shown.pop(name), priority=0) for name in CHANGE_METADATA_COLUMNS if name in shown]
    frame = Frame(columns=(*metadata_columns, *shown.values()), rows=_rows(change_scan), noun="changes")
    emit(frame, output_format=resolve_format(output_format, as_json), wide=wide, absolute=True, limit=limit)


def _split_names(columns: str | None) -> list[str] | None:
    return None if columns is None else [part.strip() for part in columns.split(",") if part.strip()]


def parse_timestamp(text: str) -> datetime:
    """Parse an ISO 8601 timestamp; without an offset it is UTC."""
    try:
        timestamp = datetime.fromisoformat(text.strip())
    except ValueError as error:
        hint = "Write it as: 2026-01-31, 2026-01-31T09:30 or 2026-01-31T09:30:00+02:00."
        raise UsageError(f"--as-of {text!r} is not a time", hint=hint) from error
    return timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)


def _data_columns(schema: Any) -> tuple[Column, ...]:
    """The columns of the data; on a narrow terminal the last ones are dropped first, and the first is always kept."""
    return tuple(
        Column(field.name, field.name, "number" if _is_numeric(field.type) else "text", priority=min(index, 1))
        for index, field in enumerate(schema)
    )


def _is_numeric(arrow_type: Any) -> bool:
    return str(arrow_type).startswith(("int", "uint", "half", "float", "double", "decimal"))


def _rows(scan: RowScan) -> Iterator[dict[str, Any]]:
    """Yield the rows batch by batch; nanosecond timestamps as text, because Python's datetime has microseconds only."""
    nanosecond_columns = [
        (index, field.name) for index, field in enumerate(scan.schema) if str(field.type).startswith("timestamp[ns")
    ]
    for batch in scan.batches():
        for index, name in nanosecond_columns:
            batch = batch.set_column(index, name, batch.column(index).cast("string"))
        for row in batch.to_pylist():
            for _, name in nanosecond_columns:
                row[name] = row[name] and row[name].replace(" ", "T", 1)
            yield row
