"""Facts of a table's metadata as frames and texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import Transform

from pyarctic._html import html_page, html_table, html_text
from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.units import format_timestamp

_SNAPSHOT_COLUMNS: dict[str, pl.DataType | pl.datatypes.DataTypeClass] = {
    "snapshot_id": pl.Int64,
    "parent_id": pl.Int64,
    "sequence_number": pl.Int64,
    "committed_at": pl.Datetime("ms", "UTC"),
    "operation": pl.String,
    "refs": pl.List(pl.String),
    "added_data_files": pl.Int64,
    "deleted_data_files": pl.Int64,
    "added_delete_files": pl.Int64,
    "removed_delete_files": pl.Int64,
    "total_records": pl.Int64,
    "summary": pl.String,
}
SNAPSHOT_SCHEMA = pl.Schema(_SNAPSHOT_COLUMNS)


def snapshot_frame(metadata: TableMetadata) -> pl.DataFrame:
    """The snapshots, oldest first, with the branches and tags that refer to them."""
    refs: dict[int, list[str]] = {}
    for name, ref in metadata.refs.items():
        refs.setdefault(ref.snapshot_id, []).append(name)
    rows = [_snapshot_row(snapshot, sorted(refs.get(snapshot.snapshot_id, []))) for snapshot in metadata.snapshots]
    return pl.DataFrame(rows, schema=SNAPSHOT_SCHEMA).sort("committed_at", maintain_order=True)


def partition_frame(files: pl.DataFrame) -> pl.DataFrame:
    """One row per partition, with the numbers and sizes of its files. `files` have their kind as `content`."""
    is_data = pl.col("content") == "data"

    def count(kind: str) -> pl.Expr:
        return (pl.col("content") == kind).sum().cast(pl.Int64)

    return files.group_by("partition", "spec_id").agg(
        data_files=count("data"),
        records=pl.col("record_count").filter(is_data).sum(),
        data_bytes=pl.col("file_size_bytes").filter(is_data).sum(),
        position_delete_files=count("position-deletes"),
        equality_delete_files=count("equality-deletes"),
        deletion_vectors=count("deletion-vector"),
        delete_bytes=pl.coalesce("content_size_bytes", "file_size_bytes").filter(~is_data).sum(),
        smallest_file_bytes=pl.col("file_size_bytes").filter(is_data).min(),
        largest_file_bytes=pl.col("file_size_bytes").filter(is_data).max(),
    )


def with_partition_paths(metadata: TableMetadata, frame: pl.DataFrame) -> pl.DataFrame:
    """Replace partition keys by readable paths. Not before grouping: null and the text 'null' have the same path."""
    decoder = PartitionDecoder(metadata)
    keys = frame.select(PARTITION_KEY).unique()
    paths = [decoder.path(spec_id, key) for spec_id, key in keys.iter_rows()]
    with_paths = keys.with_columns(pl.Series("path", paths, dtype=pl.String))
    joined = frame.join(with_paths, on=PARTITION_KEY, how="left", maintain_order="left")
    return joined.with_columns(partition=pl.col("path")).select(frame.columns)


def partition_texts(metadata: TableMetadata) -> list[str]:
    """The fields of the current partition spec as in SQL: `day(ts)`, `bucket(16, id)`, `region`."""
    schema = metadata.schema()
    return [_format_transform(field.transform, schema, field.source_id) for field in metadata.spec().fields]


def sort_texts(metadata: TableMetadata) -> list[str]:
    """The fields of the current sort order: `ts asc nulls-first`."""
    schema = metadata.schema()
    return [
        f"{_format_transform(field.transform, schema, field.source_id)} {field.direction} {field.null_order}"
        for order in metadata.sort_orders
        if order.order_id == metadata.default_sort_order_id
        for field in order.fields
    ]


def instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _snapshot_row(snapshot: Snapshot, refs: list[str]) -> dict[str, Any]:
    facts = dict(snapshot.summary.additional_properties) if snapshot.summary else {}

    def number(key: str) -> int | None:
        return int(facts[key]) if key in facts else None

    return {
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_snapshot_id,
        "sequence_number": snapshot.sequence_number,
        "committed_at": instant(snapshot.timestamp_ms),
        "operation": snapshot.summary.operation.value if snapshot.summary else None,
        "refs": refs,
        "added_data_files": number("added-data-files"),
        "deleted_data_files": number("deleted-data-files"),
        "added_delete_files": number("added-delete-files"),
        "removed_delete_files": number("removed-delete-files"),
        "total_records": number("total-records"),
        "summary": json.dumps(facts, sort_keys=True),
    }


def _format_transform(transform: Transform[Any, Any], schema: Schema, source_id: int) -> str:
    column = schema.find_column_name(source_id) or f"#{source_id}"
    if str(transform) == "identity":
        return column
    name, _, argument = str(transform).partition("[")
    return f"{name}({argument.rstrip(']')}, {column})" if argument else f"{name}({column})"


def table_facts(metadata: TableMetadata, partitions: pl.DataFrame) -> dict[str, Any]:
    """The facts of an Iceberg table, ready for JSON."""
    totals = partitions.sum() if partitions.height else pl.DataFrame()
    current = metadata.current_snapshot()

    def total(column: str) -> int:
        return int(totals[column][0]) if totals.width else 0

    return {
        "name": None,
        "kind": None,
        "uuid": str(metadata.table_uuid),
        "location": metadata.location,
        "format_version": metadata.format_version,
        "current_snapshot_id": str(current.snapshot_id) if current else None,
        "last_updated_at": format_timestamp(instant(metadata.last_updated_ms)),
        "schema": [
            {"id": f.field_id, "name": f.name, "type": str(f.field_type), "required": f.required, "doc": f.doc}
            for f in metadata.schema().fields
        ],
        "primary_key": [],
        "partition_spec": partition_texts(metadata),
        "sort_order": sort_texts(metadata),
        "refs": [
            {"name": name, "type": str(ref.snapshot_ref_type), "snapshot_id": str(ref.snapshot_id)}
            for name, ref in metadata.refs.items()
        ],
        "properties": dict(metadata.properties),
        "snapshots": len(metadata.snapshots),
        "data_files": total("data_files"),
        "delete_files": total("position_delete_files") + total("equality_delete_files") + total("deletion_vectors"),
        "position_delete_files": total("position_delete_files"),
        "equality_delete_files": total("equality_delete_files"),
        "deletion_vectors": total("deletion_vectors"),
        "records": total("records"),
        "data_bytes": total("data_bytes"),
        "delete_bytes": total("delete_bytes"),
    }


def table_html(title: str, metadata: TableMetadata, primary_key: Sequence[str]) -> str:
    """The columns of a table and where it is, for notebooks."""
    sources = {field.source_id: str(field.transform) for field in metadata.spec().fields}
    rows = [
        (
            field.name,
            str(field.field_type),
            "required" if field.required else None,
            "key" if field.name in primary_key else None,
            sources.get(field.field_id),
            field.doc,
        )
        for field in metadata.schema().fields
    ]
    return html_page(
        title, html_table(("column", "type", "", "", "partition", "comment"), rows), html_text(metadata.location)
    )
