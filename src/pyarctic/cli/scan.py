"""`arctic table scan` and `changes`: rows of a table, and what became of them, streamed batch by batch."""

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
    chosen,
    working,
)
from pyarctic.cli.table import at_most_one
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit
from pyarctic.errors import UsageError

if TYPE_CHECKING:
    from pyarctic.tables import RowScan


CHANGE_FACTS = ("_change_action", "_transaction_id", "_file_offset")


class ScanStore(enum.StrEnum):
    """Which rows of a keyed table."""

    MERGED = "merged"
    BASE = "base"
    CHANGE = "change"


def scan(
    name: TableArgument,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")] = None,
    where: Annotated[str | None, typer.Option("--where", metavar="EXPR", help="Only rows for which this holds.")] = None,
    store: Annotated[
        ScanStore, typer.Option("--store", help="Of a keyed table: one row per key, what is merged so far, or the changes.")
    ] = ScanStore.MERGED,
    snapshot: SnapshotOption = None,
    ref: RefOption = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="As the table was then: ISO 8601, UTC unless it says.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Only how many rows there are.")] = False,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Read rows of a table.

    \b
    Example:
      arctic table scan demo.shop.orders --where "amount > 100 and city = 'Oslo'" --limit 10
    """
    from pyarctic.tables import open_table

    at_most_one(snapshot=snapshot, ref=ref, as_of=as_of)
    names = None if columns is None else [part.strip() for part in columns.split(",") if part.strip()]
    when = None if as_of is None else parse_instant(as_of)
    with working(f"planning the scan of {name}"):
        table = open_table(name)
        found = table.scan(columns=names, where=where, snapshot_id=snapshot, ref=ref, as_of=when, store=store.value)
    chosen_format = chosen(output_format, as_json)
    if count:
        with working(f"counting the rows of {name}"):
            rows = found.count()
        total = {"count": rows}
        column = Column("count", "Rows", "count", identity=True)
        # A heading above one number is noise.
        bare = Format.NAME if chosen_format is Format.TABLE else chosen_format
        emit(Frame(columns=(column,), rows=[total], document=total), output_format=bare)
        return
    frame = Frame(columns=_columns(found.schema), rows=_rows(found), noun="rows")
    emit(frame, output_format=chosen_format, wide=wide, absolute=True, limit=limit)


def changes(
    name: TableArgument,
    since: Annotated[
        int | None, typer.Option("--since", metavar="SNAPSHOT", help="Only those after this snapshot of the change store.")
    ] = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Show the changes of a keyed table, oldest first.

    \b
    Example:
      arctic table changes demo.shop.orders --limit 10

    They are what was inserted and deleted since the change store was last cleaned. `table snapshots --store change`
    lists what --since can name.
    """
    from pyarctic.tables import open_table

    with working(f"reading {name}"):
        found = open_table(name).changes(since=since)
    told = {column.name: column for column in _columns(found.schema)}
    # What happened comes first, for people who read from the left.
    first = tuple(replace(told[fact], priority=0) for fact in CHANGE_FACTS)
    frame = Frame(columns=(*first, *(told[n] for n in told if n not in CHANGE_FACTS)), rows=_rows(found), noun="changes")
    emit(frame, output_format=chosen(output_format, as_json), wide=wide, absolute=True, limit=limit)


def parse_instant(text: str) -> datetime:
    """An instant as people type it; without an offset it is UTC."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError as error:
        hint = "write it as 2026-01-31, 2026-01-31T09:30 or 2026-01-31T09:30:00+02:00"
        raise UsageError(f"--as-of {text!r} is not a time", hint=hint) from error
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _columns(schema: Any) -> tuple[Column, ...]:
    """Columns of data are shown as they are; on a narrow terminal the last ones go first, the very first stays."""
    return tuple(
        Column(field.name, field.name, "number" if _numeric(field.type) else "text", priority=min(place, 1))
        for place, field in enumerate(schema)
    )


def _numeric(arrow_type: Any) -> bool:
    return str(arrow_type).startswith(("int", "uint", "half", "float", "double", "decimal"))


def _rows(found: RowScan) -> Iterator[dict[str, Any]]:
    """Rows, batch by batch; nanosecond timestamps as text, since Python's datetime would lose their last digits."""
    fine = [(place, field.name) for place, field in enumerate(found.schema) if str(field.type).startswith("timestamp[ns")]
    for batch in found.batches():
        for place, name in fine:
            batch = batch.set_column(place, name, batch.column(place).cast("string"))
        for row in batch.to_pylist():
            for _, name in fine:
                row[name] = row[name] and row[name].replace(" ", "T", 1)
            yield row
