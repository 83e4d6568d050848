"""The page of `arctic table show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.facts import facts_section
from pyarctic.cli.view.output import Frame, Section
from pyarctic.units import format_bytes, format_count


def render_table_page(summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the summary of a table: general facts and sizes first, then schema, refs, stores and properties."""
    yield facts_section(None, _table_facts(summary))
    schema = (
        Column("id", "Id", "count", priority=2),
        Column("name", "Column", priority=0),
        Column("type", "Type", priority=0),
        Column("required", "Required"),
        Column("doc", "Description", fit="wrap", optional=True),
    )
    yield Section(title="Schema", frame=Frame(columns=schema, rows=summary.get("schema") or []))
    refs = (Column("name", "Name"), Column("type", "Type"), Column("snapshot_id", "Snapshot", "id"))
    yield Section(title="Branches and tags", frame=Frame(columns=refs, rows=summary.get("refs") or []))
    if summary.get("change_store"):
        yield facts_section("Change store", _change_store_facts(summary["change_store"]))
    merged = [{"partition": path, "sequence": number} for path, number in (summary.get("merged_sequences") or {}).items()]
    sequence_columns = (Column("partition", "Partition"), Column("sequence", "Up to sequence", "count"))
    yield Section(title="Merged", frame=Frame(columns=sequence_columns, rows=merged))
    pairs = [{"key": key, "value": value} for key, value in sorted((summary.get("properties") or {}).items())]
    properties = (Column("key", "Key", priority=0), Column("value", "Value", priority=0, fit="wrap"))
    yield Section(title="Properties", frame=Frame(columns=properties, rows=pairs))


def _change_store_facts(store: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Table", store["name"]
    yield "Location", store["location"]
    yield "Snapshots", format_count(store["snapshots"])
    for kind in ("insert", "delete"):
        files, records = store[f"{kind}_files"], store[f"{kind.removesuffix('e')}ed_records"]
        yield f"{kind.capitalize()} files", f"{format_count(files)} with {format_count(records)} records"
    yield "Not merged yet", f"{format_count(store['unmerged_files'])} with {format_count(store['unmerged_records'])} records"
    yield "Data", format_bytes(store["bytes"])


def _table_facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str | datetime]]:
    """Yield the scalar part of a summary as labeled lines; absent values are left out."""
    for field, label in (("name", "Table"), ("kind", "Kind"), ("uuid", "UUID"), ("location", "Location")):
        yield label, str(summary[field])
    yield "Format version", str(summary["format_version"])
    yield "Partitioned by", ", ".join(summary.get("partition_spec") or ()) or "nothing"
    if summary.get("sort_order"):
        yield "Sorted by", ", ".join(summary["sort_order"])
    if summary.get("primary_key"):
        yield "Primary key", ", ".join(summary["primary_key"])
    yield "Snapshot", str(summary.get("current_snapshot_id") or "none yet")
    yield "Snapshots", format_count(summary["snapshots"])
    if summary.get("last_updated_at"):
        yield "Last updated", datetime.fromisoformat(summary["last_updated_at"])
    yield "Records before deletes", format_count(summary["records"])
    yield "Data files", format_count(summary["data_files"])
    yield "Data", format_bytes(summary["data_bytes"])
    for kind in ("position_delete_files", "equality_delete_files", "deletion_vectors"):
        if summary.get(kind):
            yield kind.replace("_", " ").capitalize(), format_count(summary[kind])
    if summary.get("delete_bytes"):
        yield "Deletes", format_bytes(summary["delete_bytes"])
