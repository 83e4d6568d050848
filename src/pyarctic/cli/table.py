"""`arctic table`: list tables, and show their files, partitions and snapshots."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from pyarctic.cli.session import (
    AbsoluteOption,
    DryRunOption,
    Format,
    FormatOption,
    JsonOption,
    LimitOption,
    RefOption,
    SnapshotOption,
    StoreName,
    StoreOption,
    TableArgument,
    WideOption,
    new_command_group,
    note,
    resolve_format,
    spinner,
)
from pyarctic.cli.view.columns import WIDE_ONLY, Column
from pyarctic.cli.view.output import Frame, emit, emit_details
from pyarctic.cli.view.table_page import render_table_page
from pyarctic.errors import UsageError
from pyarctic.units import format_bytes

if TYPE_CHECKING:
    from pyarctic.tables import ContentKind

group = new_command_group(
    "Create, write, read, inspect and optimize tables.\n\n\b\n"
    "Examples:\n  arctic table ls 'demo.*.orders*'\n  arctic table health"
)


class _DataFrame(Protocol):
    """The part of a data frame that is needed to print it; the CLI does not depend on Polars."""

    @property
    def columns(self) -> list[str]: ...
    @property
    def height(self) -> int: ...
    def iter_slices(self, n_rows: int) -> Iterator[Any]: ...


class Content(enum.StrEnum):
    """The content of a file."""

    DATA = "data"
    POSITION_DELETES = "position-deletes"
    EQUALITY_DELETES = "equality-deletes"
    DELETION_VECTOR = "deletion-vector"


FILE_COLUMNS = (
    Column("content", "Content", priority=3),
    Column("kind", "Kind", priority=2),
    Column("node_id", "Node", "count", priority=2),
    Column("transaction_id", "Transaction", "count", priority=3),
    Column("partition", "Partition", priority=2),
    Column("record_count", "Records", "count", priority=2),
    Column("file_size_bytes", "Size", "bytes"),
    Column("data_sequence_number", "Sequence", "count", priority=4),
    Column("file_format", "Format", priority=6),
    Column("spec_id", "Spec", "count", priority=8),
    Column("snapshot_id", "Snapshot", "id", priority=7),
    Column("file_path", "File", priority=0, identity=True, fit="middle"),
)
PARTITION_COLUMNS = (
    Column("partition", "Partition", priority=0, identity=True),
    Column("spec_id", "Spec", "count", priority=4),
    Column("data_files", "Files", "count"),
    Column("records", "Records", "count"),
    Column("data_bytes", "Data", "bytes"),
    Column("position_delete_files", "Position deletes", "count", priority=2),
    Column("equality_delete_files", "Equality deletes", "count", priority=2),
    Column("deletion_vectors", "Vectors", "count", priority=3),
    Column("delete_bytes", "Deletes", "bytes", priority=3),
    Column("smallest_file_bytes", "Smallest", "bytes", priority=4),
    Column("largest_file_bytes", "Largest", "bytes", priority=4),
)
SNAPSHOT_COLUMNS = (
    Column("snapshot_id", "Snapshot", "id", priority=0, identity=True),
    Column("committed_at", "Committed", "time", priority=0),
    Column("operation", "Operation"),
    Column("refs", "Refs", priority=2, optional=True),
    Column("sequence_number", "Sequence", "count", priority=4),
    Column("parent_id", "Parent", "id", priority=7),
    Column("added_data_files", "+Files", "count", priority=3),
    Column("deleted_data_files", "-Files", "count", priority=3),
    Column("added_delete_files", "+Deletes", "count", priority=5),
    Column("removed_delete_files", "-Deletes", "count", priority=5),
    Column("total_records", "Records", "count", priority=2),
    Column("summary", "Summary", "json", priority=WIDE_ONLY),
)

REWRITE_COLUMNS = (
    Column("table", "Table", priority=0, identity=True),
    Column("rewritten", "Rewritten", "count", priority=0),
    Column("manifests_before", "Before", "count", priority=0),
    Column("manifests_after", "After", "count", priority=0),
    Column("snapshot_id", "Snapshot", "id", priority=2, optional=True),
)


@group.command("ls")
def ls(
    pattern: Annotated[str | None, typer.Argument(metavar="[GLOB]", help="catalog.database.table with * and ?")] = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """List tables by name.

    \b
    Examples:
      arctic table ls 'demo.*.orders*'
      arctic table ls
    """
    from pyarctic.iceberg.catalog import catalog_names
    from pyarctic.tables import list_tables

    with spinner("listing tables"):
        names = list_tables(pattern or "*")
    remark = None
    if not names and not catalog_names():
        remark = "no catalog is configured, see `arctic doctor`"
    elif not names and pattern is not None:
        remark = f"none matches {pattern!r}; patterns match the full name: 'demo.*', '*.orders'"
    columns = (Column("name", "Table", priority=0, identity=True),)
    frame = Frame(columns=columns, rows=[{"name": name} for name in names], noun="tables", remark=remark)
    # Names are short and an incomplete list would be misleading: always print all of them.
    emit(frame, output_format=resolve_format(output_format, as_json), wide=wide, limit=0)


@group.command("show")
def show(
    name: TableArgument,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """Show the schema, size and properties of a table.

    \b
    Examples:
      arctic table show demo.shop.orders
      arctic table show demo.shop.orders --json
    """
    from pyarctic.tables import open_table

    with spinner(f"reading {name}"):
        summary = open_table(name).summary()
    emit_details(
        summary,
        list(render_table_page(summary)),
        output_format=resolve_format(output_format, as_json),
        absolute=absolute,
        wide=wide,
    )


@group.command("files")
def files(
    name: TableArgument,
    content: Annotated[Content | None, typer.Option("--content", help="Only files with this content.")] = None,
    store: StoreOption = StoreName.BASE,
    snapshot: SnapshotOption = None,
    ref: RefOption = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """List the files of a table.

    \b
    Examples:
      arctic table files demo.shop.orders --content data
      arctic table files demo.shop.orders --ref main --format csv
    """
    from pyarctic.tables import KeyedTable, open_table

    require_at_most_one(snapshot=snapshot, ref=ref)
    with spinner(f"listing the files of {name}"):
        table = open_table(name)
        kind = cast("ContentKind | None", content and content.value)
        frame = table.files(snapshot_id=snapshot, ref=ref, content=kind, store=store.value)
    location = table.change_store.location if isinstance(table, KeyedTable) and store == "change" else table.location
    folder = location.rstrip("/") + "/"
    columns = [replace(column, prefix=folder) if column.name == "file_path" else column for column in FILE_COLUMNS]
    noun = "files" if content is None else f"{content.value} files"
    remark = f"{format_bytes(int(frame['file_size_bytes'].sum() or 0))} under {folder}"
    emit(
        _to_frame(frame, columns, noun, remark=remark),
        output_format=resolve_format(output_format, as_json),
        wide=wide,
        limit=limit,
    )


@group.command("partitions")
def partitions(
    name: TableArgument,
    snapshot: SnapshotOption = None,
    ref: RefOption = None,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """List partitions with their files and deletes.

    \b
    Examples:
      arctic table partitions demo.shop.orders
      arctic table partitions demo.shop.orders --limit 0
    """
    from pyarctic.tables import open_table

    require_at_most_one(snapshot=snapshot, ref=ref)
    with spinner(f"listing the partitions of {name}"):
        frame = open_table(name).partitions(snapshot_id=snapshot, ref=ref)
    emit(
        _to_frame(frame, PARTITION_COLUMNS, "partitions"),
        output_format=resolve_format(output_format, as_json),
        wide=wide,
        limit=limit,
    )


@group.command("snapshots")
def snapshots(
    name: TableArgument,
    store: StoreOption = StoreName.BASE,
    limit: LimitOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """List the snapshots of a table, newest first.

    \b
    Examples:
      arctic table snapshots demo.shop.orders
      arctic table snapshots demo.shop.orders --store change --absolute
    """
    from pyarctic.tables import open_table

    with spinner(f"reading {name}"):
        frame = open_table(name).snapshots(store=store.value).reverse()
    emit(
        _to_frame(frame, SNAPSHOT_COLUMNS, "snapshots"),
        output_format=resolve_format(output_format, as_json),
        wide=wide,
        absolute=absolute,
        limit=limit,
    )


def require_at_most_one(**options: object) -> None:
    """Raise an error if more than one of these options is given."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined", hint="Choose one point in time.")


def _to_frame(frame: _DataFrame, known: Sequence[Column], noun: str, remark: str | None = None) -> Frame:
    """Convert a data frame for output: known columns first, then any others, which are shown with `--wide` only."""
    names = set(frame.columns)
    known_names = {column.name for column in known}
    others = (
        Column(name, name, _column_kind(name), priority=WIDE_ONLY) for name in frame.columns if name not in known_names
    )
    columns = (*(column for column in known if column.name in names), *others)
    rows = (row for batch in frame.iter_slices(4096) for row in batch.iter_rows(named=True))
    return Frame(columns=columns, rows=rows, noun=noun, total=frame.height, remark=remark)


def _column_kind(name: str) -> Any:
    """Infer the kind of a column from its name (`_bytes`, `_at`, …)."""
    if name.endswith("_bytes"):
        return "bytes"
    if name.endswith("_at"):
        return "time"
    return "id" if name.endswith(("snapshot_id", "row_id")) else "text"


@group.command("rewrite-manifests")
def rewrite_manifests(
    name: TableArgument,
    everything: Annotated[bool, typer.Option("--all", help="Rewrite large manifests too.")] = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Merge small manifests and sort them by partition.

    \b
    Examples:
      arctic table rewrite-manifests demo.shop.orders --dry-run
      arctic table rewrite-manifests demo.shop.orders

    Of a keyed table those of both stores are merged. Data files are not changed.
    """
    from pyarctic.tables import open_table

    with spinner("rewriting manifests"):
        report = open_table(name).rewrite_manifests(everything=everything, dry_run=dry_run).to_dict()
    stores = [report, report["change_store"]] if "change_store" in report else [report]
    emit(
        Frame(columns=REWRITE_COLUMNS, rows=stores, document=report),
        output_format=resolve_format(output_format, as_json),
        wide=wide,
    )
    if not any(store["rewritten"] for store in stores):
        note("nothing to merge")
    elif dry_run:
        note("dry run: nothing was changed")
