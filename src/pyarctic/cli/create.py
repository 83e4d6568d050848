"""`arctic table create` and `drop`."""

from __future__ import annotations

import enum
import warnings
from typing import Annotated, Any

import typer

from pyarctic.cli.arguments import parse_column, parse_pairs, refuse_unknown_properties, split_names
from pyarctic.cli.session import (
    DryRunOption,
    ForceOption,
    Format,
    FormatOption,
    JsonOption,
    TableArgument,
    WideOption,
    YesOption,
    confirm,
    note,
    resolve_format,
    spinner,
)
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit, emit_details
from pyarctic.cli.view.table_page import render_table_page
from pyarctic.errors import Damaged, NotFound, UsageError
from pyarctic.units import format_bytes, format_quantity

DROP_COLUMNS = (
    Column("table", "Table", priority=0, identity=True),
    Column("kind", "Kind"),
    Column("stores", "Stores", priority=2),
    Column("files", "Files", "count"),
    Column("bytes", "Size", "bytes"),
    Column("purge", "Files deleted", priority=0),
    Column("dropped", "Dropped", priority=0),
)


class TableFormat(enum.StrEnum):
    """The formats of new tables."""

    MIXED_ICEBERG = "mixed-iceberg"
    ICEBERG = "iceberg"


def create(  # long: option declarations
    name: TableArgument,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="TEXT", help="A column: name, type, optionally `required`. Can be repeated."),
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", metavar="FILE", help="Take the columns of this Parquet file instead of --column.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="A,B", help="Primary key columns, in order; without it the table is unkeyed."),
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option("--partition-by", metavar="TEXT", help="A column, day(column), bucket(16, column) … Can be repeated."),
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="A table property. Can be repeated.")
    ] = None,
    table_format: Annotated[
        TableFormat, typer.Option("--table-format", help="`iceberg` is an ordinary Iceberg table, without a key.")
    ] = TableFormat.MIXED_ICEBERG,
    format_version: Annotated[
        int | None,
        typer.Option("--format-version", metavar="N", help="1, 2 or 3 (default: 2); only 2 unless it is an Iceberg table."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Show a table that exists, if its kind and key are the same.")
    ] = False,
    force: ForceOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Create a table. With --key it is keyed: it accepts upserts and deletes and reads as one row per key.

    \b
    Examples:
      arctic table create demo.shop.orders --column "id long" --key id
      arctic table create demo.shop.days --like x.parquet --partition-by city

    Types are boolean, int, long, float, double, decimal(p, s), date, time, timestamp, timestamptz, string, uuid, fixed[n],
    binary. The database is created if it does not exist.
    """
    from pyarctic import create_table
    from pyarctic.tables import TableAdvice, schema_of
    from pyarctic.tables.write import infer_schema

    if (like is None) == (not columns):
        raise UsageError(
            "a table needs columns, from --column or from --like",
            hint='Write it as: --column "id long required". Use --column or --like, not both.',
        )
    table_properties = parse_pairs(properties or (), "--property write.target-file-size-bytes=134217728")
    refuse_unknown_properties(table_properties, force=force)
    schema: Any = schema_of([parse_column(text) for text in columns or ()]) if like is None else infer_schema(like)
    with warnings.catch_warnings(record=True) as advice, spinner(f"creating {name}"):
        warnings.simplefilter("always", TableAdvice)
        exists = if_not_exists and _exists(name)
        summary = create_table(
            name,
            schema,
            split_names(key),
            partition_by or (),
            table_properties,
            format=table_format.value,
            format_version=format_version,
            if_not_exists=if_not_exists,
        ).summary()
    emit_details(
        summary,
        list(render_table_page(summary)),
        output_format=resolve_format(output_format, as_json),
        absolute=False,
        wide=wide,
    )
    if exists:
        note("the table exists already: nothing was changed")
    for warning in advice:
        if issubclass(warning.category, TableAdvice):
            note(str(warning.message))


def _exists(name: str) -> bool:
    from pyarctic.tables import open_table

    try:
        open_table(name)
    except NotFound:
        return False
    return True


def drop(
    name: TableArgument,
    purge: Annotated[bool, typer.Option("--purge", help="Delete its files too.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Drop a table with all its stores. Its files are kept unless --purge is given.

    \b
    Examples:
      arctic table drop demo.shop.orders --dry-run
      arctic table drop demo.shop.orders --purge --yes
    """
    from pyarctic import drop_table

    with spinner(f"reading {name}"):
        facts = _describe_contents(name)
    facts |= {"purge": purge, "dropped": False}
    if not dry_run:
        confirm(_confirmation_text(facts), yes=yes)
        with spinner(f"dropping {name}"):
            drop_table(name, purge=purge)
        facts["dropped"] = True
    emit(
        Frame(columns=DROP_COLUMNS, rows=[facts], document=facts),
        output_format=resolve_format(output_format, as_json),
        wide=wide,
    )
    if dry_run:
        note("dry run: nothing was changed")


def _describe_contents(name: str) -> dict[str, Any]:
    """Describe what will be dropped. A table that cannot be read any more can still be dropped."""
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


def _confirmation_text(facts: dict[str, Any]) -> str:
    table = f"the {facts['kind']} table {facts['table']}" if facts["kind"] else f"the table {facts['table']}"
    files = "files"
    if facts["files"]:
        files = f"{format_quantity(facts['files'], 'file')} of {format_bytes(facts['bytes'])}"
    return f"{table} will be dropped, its {files} will be {'deleted' if facts['purge'] else 'kept'}"
