"""`arctic catalog`: which catalogs there are and whether they answer."""

from __future__ import annotations

from typing import Annotated

import typer

from pyarctic.cli.checks import CHECK_COLUMNS, Check, check_catalog, worst_exit
from pyarctic.cli.session import Format, FormatOption, JsonOption, WideOption, chosen, new_group, working
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit

group = new_group("Catalogs: list them and see whether they answer.\n\n\b\nExample:\n  arctic catalog ls")


@group.command("ls")
def ls(output_format: FormatOption = Format.TABLE, as_json: JsonOption = False, wide: WideOption = False) -> None:
    """List the catalogs that are configured.

    They are not asked anything.

    \b
    Example:
      arctic catalog ls
    """
    from pyarctic.config import catalog_properties, masked, origin_of
    from pyarctic.iceberg.catalog import catalog_names

    rows = []
    for name in catalog_names():
        shown = masked(catalog_properties(name) or {})
        known = {field: shown.get(field) for field in ("type", "uri", "warehouse")}
        rows.append({"name": name, **known, "origin": origin_of(name) or "pyiceberg"})
    columns = (
        Column("name", "Catalog", priority=0, identity=True),
        Column("type", "Type"),
        Column("uri", "Address", priority=2),
        Column("warehouse", "Warehouse", priority=3),
        Column("origin", "Declared in", priority=4),
    )
    frame = Frame(columns=columns, rows=rows, noun="catalogs", total=len(rows))
    emit(frame, output_format=chosen(output_format, as_json), wide=wide, limit=0)


@group.command("check")
def check(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One catalog; all without it.")] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Ask each catalog for its databases.

    The exit code is 1 when one does not answer.

    \b
    Example:
      arctic catalog check demo
    """
    from pyarctic.iceberg.catalog import catalog_names

    found: list[Check] = []
    for each in [name] if name is not None else catalog_names():
        with working(f"asking {each}"):
            found.append(check_catalog(each))
    frame = Frame(columns=CHECK_COLUMNS, rows=[one.to_dict() for one in found], noun="catalogs", total=len(found))
    emit(frame, output_format=chosen(output_format, as_json), wide=wide, limit=0)
    worst_exit(found)
