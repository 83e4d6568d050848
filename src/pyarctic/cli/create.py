"""`arctic table create` and `drop`: a table comes, a table goes."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer

from pyarctic.cli.arguments import column, names, note_unknown_properties, pairs
from pyarctic.cli.session import (
    DryRunOption,
    Format,
    FormatOption,
    JsonOption,
    TableArgument,
    YesOption,
    chosen,
    confirm,
    note,
    working,
)
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit, emit_details
from pyarctic.cli.view.table_page import sections
from pyarctic.errors import Damaged, UsageError
from pyarctic.units import format_bytes, format_count

DROP_COLUMNS = (
    Column("table", "Table", priority=0, identity=True),
    Column("kind", "Kind"),
    Column("stores", "Stores", priority=2),
    Column("files", "Files", "count"),
    Column("bytes", "Size", "bytes"),
    Column("purge", "Files deleted", priority=0),
    Column("dropped", "Dropped", priority=0),
)


def create(
    name: TableArgument,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="TEXT", help="A column: name, type, maybe `required`. Once for each."),
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", metavar="FILE", help="Columns as in this Parquet file, instead of --column.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="A,B", help="The primary key, in order; without it the table is unkeyed.")
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option("--partition-by", metavar="TEXT", help="A column, day(column), bucket(16, column) … Once for each."),
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="A table property. Once for each.")
    ] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Make a table; with a key it is keyed: it takes changes and reads as one row per key.

    \b
    Example:
      arctic table create demo.shop.orders --column "id long required" --column "amount decimal(10, 2)" --key id

    Types are boolean, int, long, float, double, decimal(p, s), date, time, timestamp, timestamptz, string, uuid, fixed[n],
    binary. Its database is made if there is none.
    """
    from pyarctic import create_table
    from pyarctic.tables import TableAdvice, schema_of
    from pyarctic.tables.write import infer_schema

    if (like is None) == (not columns):
        raise UsageError("a table needs columns, from --column or from --like", hint='--column "id long required"')
    told = pairs(properties or (), "--property write.target-file-size-bytes=134217728")
    schema: Any = schema_of([column(text) for text in columns or ()]) if like is None else infer_schema(like)
    with warnings.catch_warnings(record=True) as advice, working(f"making {name}"):
        warnings.simplefilter("always", TableAdvice)
        summary = create_table(name, schema, names(key), partition_by or (), told).summary()
    emit_details(summary, list(sections(summary)), output_format=chosen(output_format, as_json), absolute=False)
    for warning in advice:
        if issubclass(warning.category, TableAdvice):
            note(str(warning.message))
    note_unknown_properties(told)


def drop(
    name: TableArgument,
    purge: Annotated[bool, typer.Option("--purge", help="Delete its files as well.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Drop a table with all its stores; its files stay unless --purge.

    \b
    Example:
      arctic table drop demo.shop.orders --dry-run
    """
    from pyarctic import drop_table

    with working(f"reading {name}"):
        facts = _what_goes(name)
    facts |= {"purge": purge, "dropped": False}
    if not dry_run:
        confirm(_told(facts), yes=yes)
        with working(f"dropping {name}"):
            drop_table(name, purge=purge)
        facts["dropped"] = True
    emit(Frame(columns=DROP_COLUMNS, rows=[facts], document=facts), output_format=chosen(output_format, as_json))
    if dry_run:
        note("dry run: nothing was changed")


def _what_goes(name: str) -> dict[str, Any]:
    """What a table is made of. One that cannot be read any more can still be dropped."""
    from pyarctic.tables import open_table

    try:
        summary = open_table(name).summary()
    except Damaged as damage:
        note(f"the table is damaged: {damage}")
        return {"table": name, "kind": None, "stores": [name], "files": None, "bytes": None}
    change = summary.get("change_store") or {}
    files = summary["data_files"] + summary["delete_files"]
    return {
        "table": name,
        "kind": summary["kind"],
        "stores": [name, change["name"]] if change else [name],
        "files": files + change.get("insert_files", 0) + change.get("delete_files", 0),
        "bytes": summary["data_bytes"] + summary["delete_bytes"] + change.get("bytes", 0),
    }


def _told(facts: dict[str, Any]) -> str:
    files = "" if facts["files"] is None else f"{format_count(facts['files'])} files of {format_bytes(facts['bytes'])} "
    what = f"the {facts['kind']} table {facts['table']}" if facts["kind"] else f"the table {facts['table']}"
    if not files:
        return f"{what} goes, {'with' if facts['purge'] else 'without'} its files"
    return f"{what} goes, its {files}{'are deleted' if facts['purge'] else 'stay'}"
