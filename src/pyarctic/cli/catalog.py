"""`arctic catalog`: list the configured catalogs and check whether they respond."""

from __future__ import annotations

from typing import Annotated

import typer

from pyarctic.cli.checks import CHECK_COLUMNS, Check, check_catalog, exit_on_fault
from pyarctic.cli.session import Format, FormatOption, JsonOption, WideOption, new_command_group, resolve_format, spinner
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, emit

group = new_command_group("List and check catalogs.\n\n\b\nExamples:\n  arctic catalog ls\n  arctic catalog check demo")


@group.command("ls")
def ls(output_format: FormatOption = Format.TABLE, as_json: JsonOption = False, wide: WideOption = False) -> None:
    """List the configured catalogs, without connecting to them.

    \b
    Examples:
      arctic catalog ls
      arctic catalog ls --wide
    """
    from pyarctic.config import catalog_origin, catalog_properties, mask_properties
    from pyarctic.iceberg.catalog import catalog_names

    rows = []
    for name in catalog_names():
        properties = mask_properties(catalog_properties(name) or {})
        main_properties = {key: properties.get(key) for key in ("type", "uri", "warehouse")}
        rows.append({"name": name, **main_properties, "origin": catalog_origin(name) or "pyiceberg"})
    columns = (
        Column("name", "Catalog", priority=0, identity=True),
        Column("type", "Type"),
        Column("uri", "Address", priority=2, fit="middle"),
        Column("warehouse", "Warehouse", priority=3, fit="middle"),
        Column("origin", "Declared in", priority=4),
    )
    frame = Frame(columns=columns, rows=rows, noun="catalogs", total=len(rows))
    emit(frame, output_format=resolve_format(output_format, as_json), wide=wide, limit=0)


@group.command("check")
def check(
    name: Annotated[str | None, typer.Argument(metavar="[CATALOG]", help="Check this catalog only (default: all).")] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Check that catalogs respond, by listing their databases.

    The exit code is 1 if a catalog does not respond.

    \b
    Examples:
      arctic catalog check demo
      arctic catalog check
    """
    from pyarctic.iceberg.catalog import catalog_names

    checks: list[Check] = []
    for catalog_name in [name] if name is not None else catalog_names():
        with spinner(f"checking {catalog_name}"):
            checks.append(check_catalog(catalog_name))
    frame = Frame(columns=CHECK_COLUMNS, rows=[result.to_dict() for result in checks], noun="catalogs", total=len(checks))
    emit(frame, output_format=resolve_format(output_format, as_json), wide=wide, limit=0)
    exit_on_fault(checks)
