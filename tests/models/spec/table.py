"""Tables by the specification: metadata as JSON, commits as a new metadata file registered under the old name."""

from __future__ import annotations

import io
import itertools
import json
import struct
import uuid
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyroaring import BitMap

from tests.models.spec.avro_schemas import manifest_entry, manifest_list, optional

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
ARROW = {
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "binary": pa.binary(),
    "variant": pa.struct([pa.field("metadata", pa.binary(), nullable=False), ("value", pa.binary())]),
    "geometry(srid:4326)": pa.binary(),
    "geography(OGC:CRS84, karney)": pa.binary(),
}
PACKED = {"int": "<i", "long": "<q", "float": "<f", "double": "<d"}
AVRO = {"date": "int", "timestamp": "long", "binary": "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """An entry to commit. Fields left None are inherited or absent."""

    content: int
    path: str
    records: int
    size: int
    spec_id: int
    partition: tuple[Any, ...] = ()
    format: str = "PARQUET"
    equality_ids: tuple[int, ...] | None = None
    referenced: str | None = None
    offset: int | None = None
    length: int | None = None
    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)
    nulls: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[int, int] = field(default_factory=dict)
    nans: Mapping[int, int] = field(default_factory=dict)
    first_row_id: int | None = None
    key_metadata: bytes | None = None
    sequence: int | None = None
    file_sequence: int | None = None
    snapshot_id: int | None = None


@dataclass(slots=True)
class Manifest:
    path: str
    content: int
    spec_id: int
    sequence: int
    snapshot_id: int
    length: int
    entries: list[SpecFile]
    counts: tuple[int, int, int]
    rows: tuple[int, int, int]
    first_row_id: int | None = None

    def row_ids(self) -> dict[str, int]:
        """First row ids of the data files, where they have one: their own, or counted on from the manifest's."""
        ids: dict[str, int] = {}
        if self.first_row_id is None or self.content != DATA:
            return ids
        at = self.first_row_id
        for file in self.entries:
            if file.first_row_id is not None:
                ids[file.path] = file.first_row_id
            else:
                ids[file.path] = at
                at += file.records
        return ids


class SpecTable:
    """A table being written. `columns`: (name, type) pairs, with field ids from 1 on."""

    def __init__(
        self,
        catalog: Catalog,
        identifier: str,
        folder: Path,
        columns: Sequence[tuple[str, str]],
        *,
        version: int = 2,
        partition: Sequence[tuple[str, str]] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.catalog, self.identifier, self.folder, self.version = catalog, identifier, folder, version
        self.manifests: list[Manifest] = []
        self.parquet: dict[str, Any] = {}
        """How Parquet files are written, in the words of `pq.write_table`."""
        self.avro_codec = "deflate"
        self.block_size = 16000
        self._numbers = itertools.count(1)
        self._snapshot_ids = itertools.count(1001)
        for part in ("data", "metadata"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        fields = [
            {"id": number, "name": name, "required": False, "type": type_}
            for number, (name, type_) in enumerate(columns, start=1)
        ]
        self.metadata: dict[str, Any] = {
            "format-version": version,
            "table-uuid": str(uuid.uuid4()),
            "location": folder.as_uri(),
            "last-updated-ms": 1_700_000_000_000,
            "last-column-id": len(fields),
            "current-schema-id": 0,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": dict(properties or {}),
            "snapshots": [],
            "snapshot-log": [],
            "refs": {},
        }
        if version == 1:
            self.metadata |= {"schema": self.metadata["schemas"][0], "partition-spec": []}
        else:
            self.metadata["last-sequence-number"] = 0
        if version >= 3:
            self.metadata["next-row-id"] = 0
        if partition:
            self.partition_by(*partition)
        else:
            self.register()

    def upgrade(self, version: int) -> None:
        """A newer format version; what is written already stays as it is."""
        self.version = self.metadata["format-version"] = version
        self.metadata.setdefault("last-sequence-number", 0)
        if version >= 3:
            self.metadata.setdefault("next-row-id", 0)
        for old in ("schema", "partition-spec"):
            self.metadata.pop(old, None)
        self.register()

    # -- schema and spec -----------------------------------------------------------------------------------------

    @property
    def fields(self) -> list[dict[str, Any]]:
        current = self.metadata["current-schema-id"]
        fields: list[dict[str, Any]] = next(s for s in self.metadata["schemas"] if s["schema-id"] == current)["fields"]
        return fields

    def field_id(self, name: str) -> int:
        return int(next(f["id"] for f in self.fields if f["name"] == name))

    def set_fields(self, fields: Sequence[Mapping[str, Any]]) -> None:
        """A new current schema."""
        schema_id = len(self.metadata["schemas"])
        self.metadata["schemas"].append({"type": "struct", "schema-id": schema_id, "fields": [dict(f) for f in fields]})
        self.metadata["current-schema-id"] = schema_id
        if self.version == 1:
            self.metadata["schema"] = self.metadata["schemas"][-1]
        self.metadata["last-column-id"] = max(self.metadata["last-column-id"], *(f["id"] for f in fields))
        self.register()

    def partition_by(self, *fields: tuple[str, str]) -> int:
        """A new default spec of (column, transform); returns its id. No fields: unpartitioned."""
        spec_id = max(spec["spec-id"] for spec in self.metadata["partition-specs"]) + 1
        if not self.metadata["snapshots"] and len(self.metadata["partition-specs"]) == 1 and fields:
            spec_id, self.metadata["partition-specs"] = 0, []
        made = []
        known = {(f["source-id"], f["transform"]): f for spec in self.metadata["partition-specs"] for f in spec["fields"]}
        for column, transform in fields:
            source = self.field_id(column)
            if (source, transform) in known:  # an equivalent field keeps its id
                made.append(known[source, transform])
                continue
            self.metadata["last-partition-id"] += 1
            field_id = self.metadata["last-partition-id"]
            name = column if transform == "identity" else f"{column}_{transform.split('[')[0]}"
            made.append({"source-id": source, "field-id": field_id, "name": name, "transform": transform})
        self.metadata["partition-specs"].append({"spec-id": spec_id, "fields": made})
        self.metadata["default-spec-id"] = spec_id
        if self.version == 1:
            self.metadata["partition-spec"] = made
        self.register()
        return int(spec_id)

    # -- files ---------------------------------------------------------------------------------------------------

    def path(self, suffix: str, part: str = "data") -> Path:
        return self.folder / part / f"{next(self._numbers):05d}{suffix}"

    def arrow_schema(self, names: Sequence[str] | None = None) -> pa.Schema:
        chosen = [f for f in self.fields if names is None or f["name"] in names]
        return pa.schema(
            [pa.field(f["name"], ARROW[f["type"]], metadata={"PARQUET:field_id": str(f["id"])}) for f in chosen]
        )

    def _parquet(self, table: pa.Table, row_group_size: int | None = None) -> tuple[str, int]:
        path = self.path(".parquet")
        pq.write_table(table, path, row_group_size=row_group_size, **self.parquet)
        return path.as_uri(), path.stat().st_size

    def data(
        self,
        rows: Sequence[Mapping[str, Any]],
        partition: tuple[Any, ...] = (),
        *,
        row_group_size: int | None = None,
        without: Collection[str] = (),
        bounds_length: int = 16,
        **facts: Any,
    ) -> SpecFile:
        """A data file. `without`: columns it does not hold; strings in its bounds are cut to `bounds_length`."""
        names = [f["name"] for f in self.fields if f["name"] not in without]
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=self.arrow_schema(names))
        path, size = self._parquet(table, row_group_size)
        measured = metrics([f for f in self.fields if f["name"] in names], rows, bounds_length)
        facts = {"records": len(rows), "size": size, "partition": partition, **measured, **facts}
        return self.file(content=DATA, path=path, **facts)

    def file(self, **facts: Any) -> SpecFile:
        facts.setdefault("spec_id", self.metadata["default-spec-id"])
        return SpecFile(**facts)

    def position_deletes(self, dead: Sequence[tuple[str, int]], like: SpecFile, *, named: bool = False) -> SpecFile:
        """A position delete file in the partition of `like`; `named`: its metadata tells that it is about that file."""
        schema = pa.schema(
            [
                pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
                pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
            ]
        )
        ordered = sorted(dead)
        table = pa.table([[path for path, _ in ordered], [position for _, position in ordered]], schema=schema)
        path, size = self._parquet(table)
        return SpecFile(
            content=POSITION_DELETES,
            path=path,
            records=len(dead),
            size=size,
            spec_id=like.spec_id,
            partition=like.partition,
            referenced=like.path if named else None,
        )

    def equality_deletes(
        self, rows: Sequence[Mapping[str, Any]], partition: tuple[Any, ...] = (), *, spec_id: int | None = None
    ) -> SpecFile:
        names = list(rows[0])
        path, size = self._parquet(pa.Table.from_pylist([dict(row) for row in rows], schema=self.arrow_schema(names)))
        return SpecFile(
            content=EQUALITY_DELETES,
            path=path,
            records=len(rows),
            size=size,
            spec_id=self.metadata["default-spec-id"] if spec_id is None else spec_id,
            partition=partition,
            equality_ids=tuple(self.field_id(name) for name in names),
        )

    def vectors(self, dead: Mapping[str, Sequence[int]], likes: Sequence[SpecFile]) -> list[SpecFile]:
        """Deletion vectors of several data files in one Puffin file; `dead`: path of the data file → positions."""
        path = self.path(".puffin")
        body, entries, blobs = b"PFA1", [], []
        for like in likes:
            positions = sorted(set(dead[like.path]))
            blob = vector_blob(positions)
            entries.append((like, len(body), len(blob), len(positions)))
            blobs.append(
                {
                    "type": "deletion-vector-v1",
                    "fields": [2147483645],
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": len(body),
                    "length": len(blob),
                    "properties": {"referenced-data-file": like.path, "cardinality": str(len(positions))},
                }
            )
            body += blob
        footer = json.dumps({"blobs": blobs}).encode()
        body += b"PFA1" + footer + struct.pack("<I", len(footer)) + b"\0\0\0\0" + b"PFA1"
        path.write_bytes(body)
        return [
            SpecFile(
                content=POSITION_DELETES,
                format="PUFFIN",
                path=path.as_uri(),
                records=count,
                size=len(body),
                spec_id=like.spec_id,
                partition=like.partition,
                referenced=like.path,
                offset=offset,
                length=length,
            )
            for like, offset, length, count in entries
        ]

    # -- commits -------------------------------------------------------------------------------------------------

    def commit(self, *added: SpecFile, removed: Sequence[SpecFile] = (), operation: str = "append") -> int:
        """One snapshot that adds and removes files; returns its id."""
        snapshot_id = next(self._snapshot_ids)
        sequence = len(self.metadata["snapshots"]) + 1 if self.version > 1 else 0
        gone = {(file.path, file.offset) for file in removed}
        kept: list[Manifest] = []
        for manifest in self.manifests:
            if any((file.path, file.offset) in gone for file in manifest.entries):
                kept.append(self._filtered(manifest, gone, snapshot_id, sequence))
            else:
                kept.append(manifest)
        groups: dict[tuple[int, int], list[SpecFile]] = {}
        for file in added:
            groups.setdefault((file.spec_id, int(file.content != DATA)), []).append(file)
        for (spec_id, content), files in groups.items():
            kept.append(self._manifest(spec_id, content, [(1, file) for file in files], snapshot_id, sequence))
        self.manifests = kept
        next_row_id = self.metadata.get("next-row-id", 0)
        first = next_row_id
        if self.version >= 3:
            for manifest in self.manifests:
                if manifest.content == 0 and manifest.first_row_id is None:
                    manifest.first_row_id = next_row_id
                    next_row_id += manifest.rows[0] + manifest.rows[1]
            self.metadata["next-row-id"] = next_row_id
        live = [file for manifest in self.manifests for file in manifest.entries]
        counted = {
            "added-data-files": sum(file.content == DATA for file in added),
            "added-delete-files": sum(file.content != DATA for file in added),
            "deleted-data-files": sum(file.content == DATA for file in removed),
            "removed-delete-files": sum(file.content != DATA for file in removed),
            "total-records": sum(file.records for file in live if file.content == DATA),
        }
        summary = {"operation": operation} | {key: str(value) for key, value in counted.items()}
        self._snapshot(snapshot_id, sequence, summary, first, next_row_id)
        return snapshot_id

    def _filtered(self, manifest: Manifest, gone: set[tuple[str, int | None]], snapshot_id: int, sequence: int) -> Manifest:
        entries = []
        row_ids = manifest.row_ids()
        for file in manifest.entries:
            full = replace(
                file,
                first_row_id=row_ids.get(file.path) if manifest.content == DATA else None,
                sequence=manifest.sequence if file.sequence is None else file.sequence,
                file_sequence=manifest.sequence if file.file_sequence is None else file.file_sequence,
                snapshot_id=file.snapshot_id or manifest.snapshot_id,
            )
            entries.append((2, replace(full, snapshot_id=snapshot_id)) if (file.path, file.offset) in gone else (0, full))
        made = self._manifest(manifest.spec_id, manifest.content, entries, snapshot_id, sequence)
        made.entries = [file for status, file in entries if status != 2]
        return made

    def _manifest(
        self, spec_id: int, content: int, entries: Sequence[tuple[int, SpecFile]], snapshot_id: int, sequence: int
    ) -> Manifest:
        spec = next(s for s in self.metadata["partition-specs"] if s["spec-id"] == spec_id)
        schema = manifest_entry(self.version, self.partition_avro(spec))
        records = [self._entry(status, file, spec, snapshot_id) for status, file in entries]
        header = {
            "schema": json.dumps(self.metadata["schemas"][-1]),
            "schema-id": str(self.metadata["current-schema-id"]),
            "partition-spec": json.dumps(spec["fields"]),
            "partition-spec-id": str(spec_id),
            "format-version": str(self.version),
            "content": "deletes" if content else "data",
        }
        data = encode(schema, records, self.avro_codec, self.block_size, header)
        path = self.path("-m0.avro", "metadata")
        path.write_bytes(data)
        by_status = [[file for s, file in entries if s == status] for status in (1, 0, 2)]
        return Manifest(
            path=path.as_uri(),
            content=content,
            spec_id=spec_id,
            sequence=sequence,
            snapshot_id=snapshot_id,
            length=len(data),
            entries=[file for status, file in entries if status != 2],
            counts=(len(by_status[0]), len(by_status[1]), len(by_status[2])),
            rows=tuple(sum(file.records for file in files) for files in by_status),  # type: ignore[arg-type]
        )

    def partition_avro(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        types = {f["id"]: f["type"] for schema in self.metadata["schemas"] for f in schema["fields"]}
        fields = []
        for part in spec["fields"]:
            transform = part["transform"].split("[")[0]
            type_ = "int" if transform in ("bucket", "day", "month", "year", "hour") else types[part["source-id"]]
            fields.append(optional(part["name"], AVRO.get(type_, type_), part["field-id"]))
        return fields

    def _entry(self, status: int, file: SpecFile, spec: Mapping[str, Any], snapshot_id: int) -> dict[str, Any]:
        def pairs(values: Mapping[int, Any]) -> list[dict[str, Any]] | None:
            return [{"key": key, "value": value} for key, value in values.items()] or None

        names = [part["name"] for part in spec["fields"]]
        data_file: dict[str, Any] = {
            "content": file.content,
            "file_path": file.path,
            "file_format": file.format,
            "partition": dict(zip(names, file.partition, strict=True)),
            "record_count": file.records,
            "file_size_in_bytes": file.size,
            "block_size_in_bytes": 64 << 20,
            "value_counts": pairs(file.values),
            "nan_value_counts": pairs(file.nans),
            "lower_bounds": pairs(file.lower),
            "upper_bounds": pairs(file.upper),
            "null_value_counts": pairs(file.nulls),
            "key_metadata": file.key_metadata,
            "first_row_id": file.first_row_id,
            "equality_ids": list(file.equality_ids) if file.equality_ids else None,
            "referenced_data_file": file.referenced,
            "content_offset": file.offset,
            "content_size_in_bytes": file.length,
        }
        return {
            "status": status,
            "snapshot_id": file.snapshot_id if file.snapshot_id or self.version > 1 else snapshot_id,
            "sequence_number": file.sequence,
            "file_sequence_number": file.file_sequence,
            "data_file": data_file,
        }

    def _snapshot(
        self, snapshot_id: int, sequence: int, summary: Mapping[str, str], first_row_id: int, next_row_id: int
    ) -> None:
        records = []
        for manifest in self.manifests:
            row: dict[str, Any] = {
                "manifest_path": manifest.path,
                "manifest_length": manifest.length,
                "partition_spec_id": manifest.spec_id,
                "content": manifest.content,
                "sequence_number": manifest.sequence,
                "min_sequence_number": 0,
                "added_snapshot_id": manifest.snapshot_id,
                "first_row_id": manifest.first_row_id,
            }
            for kind, count, rows in zip(("added", "existing", "deleted"), manifest.counts, manifest.rows, strict=True):
                row |= {f"{kind}_files_count": count, f"{kind}_rows_count": rows}
            records.append(row)
        path = self.path(f"-snap-{snapshot_id}.avro", "metadata")
        path.write_bytes(encode(manifest_list(self.version), records, self.avro_codec, 16000, {}))
        parent = self.metadata.get("current-snapshot-id")
        moment = self.metadata["last-updated-ms"] + 1000
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "timestamp-ms": moment,
            "summary": dict(summary),
            "manifest-list": path.as_uri(),
            "schema-id": self.metadata["current-schema-id"],
        }
        if self.version > 1:
            snapshot["sequence-number"] = self.metadata["last-sequence-number"] = sequence
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent
        if self.version >= 3:
            snapshot |= {"first-row-id": first_row_id, "added-rows": next_row_id - first_row_id}
        self.metadata["snapshots"].append(snapshot)
        self.metadata["snapshot-log"].append({"snapshot-id": snapshot_id, "timestamp-ms": moment})
        self.metadata["last-updated-ms"] = moment
        self.metadata["current-snapshot-id"] = snapshot_id
        self.metadata["refs"]["main"] = {"snapshot-id": snapshot_id, "type": "branch"}
        self.register()

    def register(self) -> Path:
        """Write the metadata and point the catalog's table at it."""
        path = self.path(".metadata.json", "metadata")
        path.write_text(json.dumps(self.metadata))
        if self.catalog.table_exists(self.identifier):
            self.catalog.drop_table(self.identifier)
        self.catalog.register_table(self.identifier, path.as_uri())
        return path


def metrics(
    fields: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], bounds_length: int
) -> dict[str, dict[int, Any]]:
    """Bounds and counts of a data file's columns."""
    made: dict[str, dict[int, Any]] = {"lower": {}, "upper": {}, "nulls": {}, "values": {}, "nans": {}}
    for column in fields:
        id_, values = column["id"], [row.get(column["name"]) for row in rows]
        present = [value for value in values if value is not None and value == value]
        made["values"][id_] = len(values)
        made["nulls"][id_] = sum(value is None for value in values)
        if column["type"] in ("float", "double"):
            made["nans"][id_] = len(values) - len(present) - made["nulls"][id_]
        if not present or column["type"] not in (*PACKED, "string"):
            continue
        lower, upper = min(present), max(present)
        if column["type"] == "string":
            # A cut upper bound must still be above what was cut: its last character goes up by one.
            cut = (
                upper if len(upper) <= bounds_length else upper[: bounds_length - 1] + chr(ord(upper[bounds_length - 1]) + 1)
            )
            made["lower"][id_], made["upper"][id_] = lower[:bounds_length].encode(), cut.encode()
        else:
            made["lower"][id_], made["upper"][id_] = (struct.pack(PACKED[column["type"]], v) for v in (lower, upper))
    return made


def encode(
    schema: Mapping[str, Any], records: Sequence[Any], codec: str, block_size: int, header: Mapping[str, str]
) -> bytes:
    buffer = io.BytesIO()
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    fastavro.writer(buffer, parsed, records, codec=codec, sync_interval=block_size, metadata=dict(header))
    return buffer.getvalue()


def vector_blob(positions: Sequence[int]) -> bytes:
    """A `deletion-vector-v1` blob."""
    halves: dict[int, BitMap] = {}
    for position in positions:
        halves.setdefault(position >> 32, BitMap()).add(position & 0xFFFFFFFF)
    vector = struct.pack("<Q", len(halves))
    for upper in sorted(halves):
        halves[upper].run_optimize()
        vector += struct.pack("<I", upper) + halves[upper].serialize()
    body = bytes.fromhex("D1D33964") + vector
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
