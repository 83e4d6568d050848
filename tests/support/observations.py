"""Tables that exist only as file lists: what evaluating and planning need, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import polars as pl
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from pyarctic.iceberg.delete import match_deletes
from pyarctic.iceberg.manifest import FILE_SCHEMA, PartitionDecoder
from pyarctic.optimizing.evaluate.evaluation import Evaluation, evaluate
from pyarctic.optimizing.observe.history import ACTIVITY, SNAPSHOT_TIMES
from pyarctic.optimizing.observe.observation import Observation
from pyarctic.optimizing.order.sort_order import table_order
from pyarctic.optimizing.settings import Settings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KIB, MIB = 1 << 10, 1 << 20
SNAPSHOT = 77
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=0)
DEFAULTS = {"self-optimizing.target-size": "8MiB", "self-optimizing.minor.trigger.interval": "-1"}
"""Fragments are below 1 MiB, undersized files below 6 MiB."""


def table_metadata(properties: Mapping[str, str] | None = None, version: int = 2) -> TableMetadata:
    told = {"format-version": str(version), **DEFAULTS, **(properties or {})}
    return new_table_metadata(SCHEMA, SPEC, UNSORTED_SORT_ORDER, "file:///nowhere", told)


def file(content: int = 0, path: str = "", size: int = 8 * MIB, part: str | None = "a", **more: Any) -> dict[str, Any]:
    """A row of a file list; its partition is that of `part`."""
    file.count += 1  # type: ignore[attr-defined]
    row: dict[str, Any] = {
        "content": content,
        "file_path": path or f"file:///nowhere/{file.count:06d}.parquet",  # type: ignore[attr-defined]
        "file_format": "PARQUET",
        "spec_id": 0,
        "partition": PartitionDecoder.key_of((part,)),
        "record_count": 1000,
        "file_size_bytes": size,
        "data_sequence_number": 1 if content == 0 else 2,
        "snapshot_id": SNAPSHOT,
    }
    return row | more


file.count = 0  # type: ignore[attr-defined]


def listed(rows: list[dict[str, Any]]) -> pl.DataFrame:
    missing = dict.fromkeys(FILE_SCHEMA)
    return pl.DataFrame([missing | row for row in rows], schema=FILE_SCHEMA, orient="row")


def observed(
    files: pl.DataFrame,
    properties: Mapping[str, str] | None = None,
    *,
    metadata: TableMetadata | None = None,
    committed_at: datetime = NOW,
    times: pl.DataFrame | None = None,
    activity: pl.DataFrame | None = None,
    now: datetime = NOW,
    bounds: pl.DataFrame | None = None,
    destinations: pl.DataFrame | None = None,
) -> Observation:
    metadata = metadata or table_metadata(properties)
    known = pl.DataFrame([(SNAPSHOT, committed_at, False, False, None)], SNAPSHOT_TIMES.names(), orient="row").cast(
        SNAPSHOT_TIMES
    )
    return Observation(
        table="c.d.t",
        metadata=metadata,
        snapshot_id=SNAPSHOT,
        settings=Settings.of(metadata.properties),
        matches=match_deletes(files, PartitionDecoder(metadata).unpartitioned_specs()),
        times=known if times is None else times,
        activity=pl.DataFrame(schema=ACTIVITY) if activity is None else activity,
        now=now,
        order=table_order(metadata, Settings.of(metadata.properties)),
        bounds=bounds,
        destinations=destinations,
    )


def evaluated(rows: list[dict[str, Any]], properties: Mapping[str, str] | None = None, **more: Any) -> Evaluation:
    return evaluate(observed(listed(rows), properties, **more))


def only(evaluation: Evaluation) -> dict[str, Any]:
    """The one partition."""
    assert evaluation.partitions.height == 1
    return evaluation.partitions.row(0, named=True)
