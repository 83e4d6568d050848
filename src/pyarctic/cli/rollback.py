"""`arctic table rollback`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pyarctic.cli.session import (
    DryRunOption,
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
from pyarctic.cli.view.output import emit_details
from pyarctic.cli.view.report_page import render_rollback

if TYPE_CHECKING:
    from pyarctic.optimizing.commit import Rollback


def rollback(
    name: TableArgument,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="SNAPSHOT", help="Target snapshot (default: before the last `optimize`)."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Undo the last `optimize`.

    \b
    Examples:
      arctic table rollback demo.shop.orders --dry-run
      arctic table rollback demo.shop.orders --yes

    The rows of the table do not change. If the table has been written to since, it refuses with exit code 4.
    """
    from pyarctic.optimizing.commit import roll_back
    from pyarctic.tables import open_table

    with spinner(f"reading {name}"):
        table = open_table(name)
        result = roll_back(table, to, dry_run=True)
    if not dry_run:
        confirm(_confirmation_text(result), yes=yes)
        with spinner(f"rolling {name} back"):
            # To the snapshot that was shown, even if the table has changed since.
            result = roll_back(table.refresh(), result.to_snapshot_id)
    emit_details(
        result.to_dict(),
        [render_rollback(result)],
        output_format=resolve_format(output_format, as_json),
        absolute=False,
        wide=wide,
    )
    if dry_run:
        note("dry run: nothing was changed")


def _confirmation_text(planned: Rollback) -> str:
    return f"{planned.table} will be rolled back from snapshot {planned.from_snapshot_id} to {planned.to_snapshot_id}"
