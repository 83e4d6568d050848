"""`arctic table set`, `unset` and `evolve`: properties and columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from pyarctic.cli.arguments import column, note_unknown_properties, pairs
from pyarctic.cli.session import Format, FormatOption, JsonOption, TableArgument, chosen, note, working
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
    Column("doc", "Description", priority=2),
)

Texts = list[str] | None


def set_properties(
    name: TableArgument,
    words: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Properties.", show_default=False)],
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Set properties of a table; of a keyed one, of both its stores.

    \b
    Example:
      arctic table set demo.shop.orders self-optimizing.target-size=256MB
    """
    told = pairs(words, "self-optimizing.target-size=256MB")
    _change_properties(name, lambda table: table.set(told), told, chosen(output_format, as_json))
    note_unknown_properties(told)


def unset_properties(
    name: TableArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Names of properties.", show_default=False)],
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Remove properties of a table; those that are not set are ignored.

    \b
    Example:
      arctic table unset demo.shop.orders self-optimizing.target-size
    """
    _change_properties(name, lambda table: table.unset(*keys), keys, chosen(output_format, as_json))


def _change_properties(name: str, act: Callable[[Table], None], keys: Iterable[str], output_format: Format) -> None:
    from pyarctic.tables import open_table

    with working(f"changing {name}"):
        table = open_table(name)
        before = table.properties
        act(table)
        after = table.properties
    rows = [{"key": key, "before": before.get(key), "after": after.get(key)} for key in keys]
    document = {"table": name, "properties": rows}
    emit(Frame(columns=PROPERTY_COLUMNS, rows=rows, document=document), output_format=output_format, limit=0)
    if before == after:
        note("nothing was changed")


def evolve(
    name: TableArgument,
    add: Annotated[Texts, typer.Option("--add", metavar="TEXT", help="A new column: name and type.")] = None,
    drop: Annotated[Texts, typer.Option("--drop", metavar="COLUMN", help="Drop a column.")] = None,
    rename: Annotated[Texts, typer.Option("--rename", metavar="OLD=NEW", help="Rename a column.")] = None,
    widen: Annotated[
        Texts, typer.Option("--widen", metavar="COLUMN=TYPE", help="int to long, float to double, a decimal to more digits.")
    ] = None,
    optional: Annotated[Texts, typer.Option("--optional", metavar="COLUMN", help="Let a required column be null.")] = None,
    describe: Annotated[Texts, typer.Option("--describe", metavar="COLUMN=TEXT", help="What a column means.")] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Change the columns of a table, in one step. Every option may be given several times.

    \b
    Example:
      arctic table evolve demo.shop.orders --add "note string" --rename amount=total

    Columns are named as they are before. Files stay as they are: their rows are read with the new columns. Key columns
    cannot be changed.
    """
    from pyarctic.tables import open_table

    with working(f"changing {name}"):
        table = open_table(name)
        table.evolve(
            add=_added(add or ()),
            drop=drop or (),
            rename=pairs(rename or (), "--rename amount=total"),
            widen=pairs(widen or (), "--widen amount=long"),
            optional=optional or (),
            describe=pairs(describe or (), '--describe "amount=with tax"'),
        )
        schema = table.summary()["schema"]
    document = {"table": name, "schema": schema}
    emit(
        Frame(columns=SCHEMA_COLUMNS, rows=schema, document=document), output_format=chosen(output_format, as_json), limit=0
    )


def _added(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, type_, required = column(text)
        if required:
            raise UsageError(f"new column {name!r} cannot be required", hint="rows that are there have no value for it")
        if name in found:
            raise UsageError(f"column {name!r} is added twice", hint="name it once")
        found[name] = type_
    return found
