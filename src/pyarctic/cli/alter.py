"""`arctic table set`, `unset`, `evolve` and `upgrade`: change properties, columns and stored form of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from pyarctic.cli.arguments import parse_column, parse_pairs, refuse_unknown_properties
from pyarctic.cli.session import (
    DryRunOption,
    ForceOption,
    Format,
    FormatOption,
    JsonOption,
    TableArgument,
    WideOption,
    note,
    resolve_format,
    spinner,
)
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit
from pyarctic.errors import UsageError

if TYPE_CHECKING:
    from pyarctic.tables import Table

PROPERTY_COLUMNS = (
    Column("key", "Key", priority=0, identity=True),
    Column("before", "Before"),
    Column("after", "After", priority=0),
)
SCHEMA_COLUMNS = (
    Column("id", "Id", "count", priority=2),
    Column("name", "Column", priority=0, identity=True),
    Column("type", "Type", priority=0),
    Column("required", "Required"),
    Column("doc", "Description", priority=2, optional=True),
)

UPGRADE_COLUMNS = (
    Column("table", "Table", priority=0, identity=True),
    Column("snapshot_id", "Snapshot", "id"),
    Column("expired_snapshots", "Expired snapshots", "count", priority=0),
    Column("removed_statistics", "Removed statistics", "count"),
)

OptionalTexts = list[str] | None


def set_properties(
    name: TableArgument,
    words: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Properties to set.", show_default=False)],
    force: ForceOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Set table properties. For a keyed table they are set on both stores.

    \b
    Examples:
      arctic table set demo.shop.orders self-optimizing.target-size=256MB
      arctic table set demo.shop.orders owner=anna self-optimizing.quota=0.5
    """
    properties = parse_pairs(words, "self-optimizing.target-size=256MB")
    refuse_unknown_properties(properties, force=force)
    _change_properties(
        name, lambda table: table.set(properties), properties, resolve_format(output_format, as_json), wide=wide
    )


def unset_properties(
    name: TableArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Properties to remove.", show_default=False)],
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Remove table properties. Keys that are not set are ignored.

    \b
    Examples:
      arctic table unset demo.shop.orders self-optimizing.target-size
      arctic table unset demo.shop.orders owner comment
    """
    _change_properties(name, lambda table: table.unset(*keys), keys, resolve_format(output_format, as_json), wide=wide)


def _change_properties(
    name: str, change: Callable[[Table], None], keys: Iterable[str], output_format: Format, *, wide: bool
) -> None:
    from pyarctic.tables import open_table

    with spinner(f"changing {name}"):
        table = open_table(name)
        before = table.properties
        change(table)
        after = table.properties
    rows = [{"key": key, "before": before.get(key), "after": after.get(key)} for key in keys]
    document = {"table": name, "properties": rows}
    emit(Frame(columns=PROPERTY_COLUMNS, rows=rows, document=document), output_format=output_format, wide=wide, limit=0)
    if before == after:
        note("nothing was changed")


def evolve(  # long: option declarations
    name: TableArgument,
    add: Annotated[OptionalTexts, typer.Option("--add", metavar="TEXT", help="Add a column: name and type.")] = None,
    drop: Annotated[OptionalTexts, typer.Option("--drop", metavar="COLUMN", help="Drop a column.")] = None,
    rename: Annotated[OptionalTexts, typer.Option("--rename", metavar="OLD=NEW", help="Rename a column.")] = None,
    widen: Annotated[
        OptionalTexts,
        typer.Option(
            "--widen",
            metavar="COLUMN=TYPE",
            help="Widen int to long, float to double, or a decimal's precision.",
        ),
    ] = None,
    optional: Annotated[
        OptionalTexts, typer.Option("--optional", metavar="COLUMN", help="Make a required column optional.")
    ] = None,
    describe: Annotated[
        OptionalTexts, typer.Option("--describe", metavar="COLUMN=TEXT", help="Set the description of a column.")
    ] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Change the columns of a table in one commit. Every option can be repeated.

    \b
    Examples:
      arctic table evolve demo.shop.orders --add "note string" --drop city
      arctic table evolve demo.shop.orders --widen "amount=decimal(12, 2)"

    Options refer to the column names before the change. Data files are not rewritten; their rows are read with the new
    schema. Key columns cannot be changed.
    """
    from pyarctic.tables import open_table

    with spinner(f"changing {name}"):
        table = open_table(name)
        table.evolve(
            add=_parse_added_columns(add or ()),
            drop=drop or (),
            rename=parse_pairs(rename or (), "--rename amount=total"),
            widen=parse_pairs(widen or (), "--widen amount=long"),
            optional=optional or (),
            describe=parse_pairs(describe or (), '--describe "amount=with tax"'),
        )
        schema = table.summary()["schema"]
    document = {"table": name, "schema": schema}
    emit(
        Frame(columns=SCHEMA_COLUMNS, rows=schema, document=document),
        output_format=resolve_format(output_format, as_json),
        wide=wide,
        limit=0,
    )


def upgrade(
    name: TableArgument,
    dry_run: DryRunOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Make a keyed table readable by every Iceberg reader.

    \b
    Examples:
      arctic table upgrade demo.shop.orders --dry-run
      arctic table upgrade demo.shop.orders

    Stores how far the table is merged where all readers of its base store accept it. Needed once for tables that other
    engines of the format have merged. Older snapshots of the base store are expired: they
    can no longer be read. Rows and files do not change.
    """
    from pyarctic.tables import KeyedTable, open_table

    with spinner(f"upgrading {name}"):
        table = open_table(name)
        if not isinstance(table, KeyedTable):
            raise UsageError(f"{name} has no primary key", hint="Only keyed tables are upgraded.")
        report = table.upgrade(dry_run=dry_run).to_dict()
    row = report | {name: len(report[name]) for name in ("expired_snapshots", "removed_statistics")}
    emit(
        Frame(columns=UPGRADE_COLUMNS, rows=[row], document=report),
        output_format=resolve_format(output_format, as_json),
        wide=wide,
    )
    if not report["needed"]:
        note("nothing to upgrade")
    elif dry_run:
        note("dry run: nothing was changed")


def _parse_added_columns(texts: Iterable[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for text in texts:
        name, type_, required = parse_column(text)
        if required:
            raise UsageError(
                f"new column {name!r} cannot be required", hint="Existing rows have no value for it. Leave `required` out."
            )
        if name in columns:
            raise UsageError(f"column {name!r} is added twice", hint="Name it once.")
        columns[name] = type_
    return columns
