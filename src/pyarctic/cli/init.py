"""`arctic init`: a folder with an `arctic.yaml` and a catalog to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from pyarctic.cli.session import Format, FormatOption, JsonOption, WideOption, note, resolve_format, spinner
from pyarctic.cli.view.facts import facts_section
from pyarctic.cli.view.output import emit_details
from pyarctic.errors import ConfigError, Rejected, Unavailable

FILE_NAME = "arctic.yaml"
TEXT = """\
# The catalogs of PyArctic. Commands find this file in the current folder, or by --config FILE or $ARCTIC_CONFIG.
#
# The properties of a catalog are those of PyIceberg: https://py.iceberg.apache.org/configuration/
# ${{NAME}} is an environment variable, ${{NAME:default}} has a default. ${{ARCTIC_CONFIG_DIR}} is the folder of this file.

catalogs:
  # The first part of table names: {catalog}.shop.orders
  {catalog}:
    type: sql
    uri: sqlite:///${{ARCTIC_CONFIG_DIR}}/catalog.db
    warehouse: file://${{ARCTIC_CONFIG_DIR}}/warehouse

  # A REST catalog with tables in S3:
  # prod:
  #   type: rest
  #   uri: https://catalog.example.com
  #   token: ${{CATALOG_TOKEN}}
  #   s3.region: eu-central-1
"""


def init(
    folder_name: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="The folder (default: the current one).", show_default=False)
    ] = ".",
    catalog: Annotated[str, typer.Option("--catalog", metavar="NAME", help="Name of the catalog.")] = "demo",
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Create an arctic.yaml and a local catalog to begin with.

    \b
    Examples:
      arctic init
      arctic init lake --catalog dev

    The catalog is a SQLite file, next to a folder for tables. The folder is created if it does not exist. Files that
    exist are never overwritten.
    """
    from pyarctic.config import check_catalog_name, use
    from pyarctic.iceberg.catalog import open_catalog

    resolved_format = resolve_format(output_format, as_json)
    check_catalog_name(catalog)
    folder = Path(folder_name)
    path = folder / FILE_NAME
    create_files(folder, path, TEXT.format(catalog=catalog))
    use(path)
    try:
        with spinner("creating the catalog"):
            open_catalog(catalog).close()
    except BaseException:
        path.unlink()  # so that the command can be repeated
        raise
    commands = list(_next_commands(folder, catalog))
    document = {
        "name": str(path),
        "config": str(path.absolute()),
        "catalog": catalog,
        "database": str((folder / "catalog.db").absolute()),
        "warehouse": str((folder / "warehouse").absolute()),
        "next": commands,
    }
    emit_details(document, [_facts(document)], output_format=resolved_format, absolute=False, wide=wide)
    if resolved_format is Format.TABLE:
        note("Next:")
        for command in commands:
            note(f"  {command}", style="bold")


def create_files(folder: Path, path: Path, text: str) -> None:
    """Create a folder with a configuration file and a place for tables; files that exist are not overwritten."""
    try:
        (folder / "warehouse").mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        if path.exists():
            raise Rejected(
                f"{path} exists already", hint="Nothing was changed. Use it, or choose another folder.", file=str(path)
            ) from error
        raise ConfigError(
            f"{error.filename} is a file, not a folder", hint="Choose another folder.", file=str(error.filename)
        ) from error
    except NotADirectoryError as error:
        raise ConfigError(f"{folder}: a part of it is a file", hint="Choose another folder.", file=str(folder)) from error
    except OSError as error:
        raise Unavailable(
            f"{folder}: cannot be written to: {error.strerror or error}",
            hint="Choose a folder that you may write to.",
            file=str(error.filename or folder),
        ) from error


def _facts(document: dict[str, Any]) -> Any:
    labels = {"config": "Configuration", "catalog": "Catalog", "database": "Database", "warehouse": "Warehouse"}
    return facts_section(None, ((label, document[field]) for field, label in labels.items()))


def _next_commands(folder: Path, catalog: str) -> list[str]:
    table = f"{catalog}.shop.people"
    commands = [
        f'arctic table create {table} --column "id long" --key id',
        f"echo '{{\"id\": 1}}' | arctic table write {table} - --input-format jsonl",
        f"arctic table scan {table}",
    ]
    return commands if folder.absolute() == Path.cwd() else [f"cd {shlex.quote(str(folder))}", *commands]
