"""A store of a keyed table, looked at without any code of ours: JSON, fastavro and PyArrow on its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog

NAME = re.compile(
    r"(?P<node>\d+)-(?P<kind>B|I|ED|PD)-(?P<transaction>\d+)-(?P<part>\d{5})-(?P<task>\d+)-(?P<operation>\d+)-(?P<number>\d{5})"
    r"\.parquet"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A live file as a manifest lists it."""

    path: Path
    content: int
    manifest_content: int
    sequence_number: int
    partition: dict[str, Any]
    record_count: int

    @property
    def name_parts(self) -> dict[str, str]:
        """What the name of the file tells."""
        match = NAME.fullmatch(self.path.name)
        assert match, self.path.name
        return match.groupdict()

    @property
    def kind(self) -> str:
        return self.name_parts["kind"]

    def rows(self) -> pa.Table:
        # Not by its path alone: PyArrow would make columns of the folders.
        return pq.ParquetFile(self.path).read()


class StoreLook:
    """The newest state of a store."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.metadata: dict[str, Any] = json.loads(_local(catalog.load_table(name).metadata_location).read_bytes())

    @property
    def location(self) -> Path:
        return _local(self.metadata["location"])

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.metadata["properties"])

    @property
    def schema(self) -> dict[str, Any]:
        return next(s for s in self.metadata["schemas"] if s["schema-id"] == self.metadata["current-schema-id"])

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        return sorted(self.metadata.get("snapshots", []), key=lambda snapshot: int(snapshot["sequence-number"]))

    @property
    def snapshot(self) -> dict[str, Any]:
        return next(s for s in self.snapshots if s["snapshot-id"] == self.metadata["current-snapshot-id"])

    def entries(self) -> list[Entry]:
        """The live files, in the order of their names' counters."""
        entries = [entry for manifest in _avro(self.snapshot["manifest-list"]) for entry in _entries(manifest)]
        return sorted(entries, key=lambda entry: (entry.sequence_number, entry.name_parts["number"]))

    def statistics(self) -> list[dict[str, Any]]:
        return list(self.metadata.get("statistics", []))


def puffin(path: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The footer of a Puffin file, and its blobs by their type."""
    data = _local(path).read_bytes()
    length = int.from_bytes(data[-12:-8], "little")
    start = len(data) - 16 - length
    assert data[:4] == data[start : start + 4] == data[-4:] == b"PFA1"
    assert data[-8:-4] == bytes(4), "the footer is compressed"
    footer = json.loads(data[start + 4 : -12])
    blobs = {blob["type"]: data[blob["offset"] : blob["offset"] + blob["length"]] for blob in footer["blobs"]}
    return footer, blobs


def _entries(manifest: dict[str, Any]) -> Iterator[Entry]:
    for entry in _avro(manifest["manifest_path"]):
        if entry["status"] == 2:
            continue
        file, sequence = entry["data_file"], entry["sequence_number"]
        yield Entry(
            path=_local(file["file_path"]),
            content=file["content"],
            manifest_content=manifest["content"],
            sequence_number=manifest["sequence_number"] if sequence is None else sequence,
            partition=file["partition"],
            record_count=file["record_count"],
        )


def _avro(path: str) -> list[dict[str, Any]]:
    with _local(path).open("rb") as stream:
        return [record for record in fastavro.reader(stream) if isinstance(record, dict)]


def _local(path: str) -> Path:
    return Path(re.sub("^file:/*", "/", path))
