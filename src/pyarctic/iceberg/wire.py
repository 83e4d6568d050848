"""Serialization of table metadata, file lists and written files for other processes, small and without a catalog."""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder
from pyarctic.iceberg.write.new_file import Metrics, NewFile


def trim_metadata(metadata: TableMetadata, keeps: Callable[[str], bool] = lambda _: True) -> TableMetadata:
    """The metadata of a table without its history. `keeps` decides which table properties are kept."""
    return metadata.model_copy(
        update={
            "properties": {key: value for key, value in metadata.properties.items() if keeps(key)},
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
            "statistics": [],
            "partition_statistics": [],
        }
    )


def frame_to_bytes(frame: pl.DataFrame) -> bytes:
    """Serialize a frame as a compressed Arrow IPC file."""
    buffer = io.BytesIO()
    frame.write_ipc(buffer, compression="zstd")
    return buffer.getvalue()


def frame_from_bytes(data: bytes) -> pl.DataFrame:
    """The frame that `frame_to_bytes` serialized."""
    return pl.read_ipc(io.BytesIO(data))


def file_to_json(file: NewFile) -> dict[str, Any]:
    """A written file as a JSON document."""
    values = {entry.name: getattr(file, entry.name) for entry in fields(file)}
    metrics = {entry.name: dict(getattr(file.metrics, entry.name)) for entry in fields(file.metrics)}
    for bounds in ("lower_bounds", "upper_bounds"):
        metrics[bounds] = {key: b64encode(value).decode() for key, value in metrics[bounds].items()}
    return values | {"partition": PartitionDecoder.key_of(file.partition), "metrics": metrics}


def file_from_json(document: Mapping[str, Any], decoder: PartitionDecoder) -> NewFile:
    """The file of a document made by `file_to_json`. Unknown fields are ignored."""
    metrics = {
        entry.name: {int(key): value for key, value in document["metrics"].get(entry.name, {}).items()}
        for entry in fields(Metrics)
    }
    for bounds in ("lower_bounds", "upper_bounds"):
        metrics[bounds] = {key: b64decode(value) for key, value in metrics[bounds].items()}
    given = {entry.name: document[entry.name] for entry in fields(NewFile) if entry.name in document}
    return NewFile(
        **{
            **given,
            "partition": decoder.values(document["spec_id"], document["partition"]),
            "metrics": Metrics(**metrics),
            "split_offsets": tuple(document.get("split_offsets", ())),
            "equality_ids": tuple(document.get("equality_ids", ())),
        }
    )
