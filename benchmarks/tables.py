"""The tables of the benchmarks, created once under .cache/bench by the reference writer of the tests (tests/models/spec)."""

from __future__ import annotations

import io
import random
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from pyarctic.iceberg.commit import Committed, ManifestRewrite, commit
from tests.models.spec.avro_schemas import manifest_entry
from tests.models.spec.table import DATA, Manifest, SpecTable, encode

CACHE = Path(__file__).parents[1] / ".cache" / "bench"
ENTRIES_PER_MANIFEST = 10_000
PARTITIONS = 1_000
_TOKEN = b"@@@@@"


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}


def prepare_table(name: str, make: Callable[[SqlCatalog, Path], None]) -> Path:
    """The folder of a table, which is created on first use."""
    folder = CACHE / name
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog("bench", **properties(folder))
        catalog.create_namespace_if_not_exists("b")
        make(catalog, folder)
        (folder / "done").touch()
    return folder


def many_files(files: int, *, clustered: bool = False) -> Path:
    """Table b.t with this many data files, ten columns with full metrics, 10,000 entries per manifest, deflate; and one more
    snapshot that adds a single file. `clustered`: its manifests are sorted by partition, so that planners can skip them."""

    def make(catalog: SqlCatalog, folder: Path) -> None:
        columns = [("p", "int"), *((f"c{index}", "long") for index in range(1, 10))]
        table = SpecTable(catalog, "b.t", folder / "table", columns, partition=[("p", "identity")])
        schema = manifest_entry(2, table.partition_avro(table.metadata["partition-specs"][0]))
        rng = random.Random(7)
        records = [_entry(rng, folder, index) for index in range(ENTRIES_PER_MANIFEST)]
        header = encode(schema, [], "deflate", 64_000, {"content": "data"})
        plain = [
            (block.num_records, block.bytes_.getvalue())  # type: ignore[attr-defined]
            for block in fastavro.block_reader(io.BytesIO(encode(schema, records, "null", 64_000, {})))
        ]
        for number in range(files // ENTRIES_PER_MANIFEST):
            token = f"{number:05d}".encode()
            blocks = [(count, _deflate(body.replace(_TOKEN, token))) for count, body in plain]
            data = header + b"".join(_zigzag(c) + _zigzag(len(b)) + b + header[-16:] for c, b in blocks)
            path = table.path("-m0.avro", "metadata")
            path.write_bytes(data)
            rows = sum(record["data_file"]["record_count"] for record in records)
            table.manifests.append(
                Manifest(
                    path=path.as_uri(),
                    content=0,
                    spec_id=0,
                    sequence=1,
                    snapshot_id=1001,
                    length=len(data),
                    entries=[],
                    counts=(ENTRIES_PER_MANIFEST, 0, 0),
                    rows=(rows, 0, 0),
                )
            )
        table.commit()
        table.commit(table.file(content=DATA, path=f"{folder.as_uri()}/one-more.parquet", records=1, size=1, partition=(1,)))
        if clustered:
            assert isinstance(commit(catalog.load_table("b.t"), ManifestRewrite()), Committed)

    return prepare_table(f"{'clustered' if clustered else 'files'}-{files}", make)


def _entry(rng: random.Random, folder: Path, index: int) -> dict[str, Any]:
    def metric(value: Callable[[], Any]) -> list[dict[str, Any]]:
        return [{"key": key, "value": value()} for key in range(1, 11)]

    partition = rng.randrange(PARTITIONS)
    name = f"{_TOKEN.decode()}-{index:05d}-{uuid.UUID(int=rng.getrandbits(128))}.parquet"
    return {
        "status": 1,
        "data_file": {
            "content": 0,
            "file_path": f"{folder.as_uri()}/table/data/p={partition}/{name}",
            "file_format": "PARQUET",
            "partition": {"p": partition},
            "record_count": rng.randrange(1_000_000),
            "file_size_in_bytes": rng.randrange(1 << 28),
            "column_sizes": metric(lambda: rng.randrange(1 << 24)),
            "value_counts": metric(lambda: 100_000),
            "null_value_counts": metric(lambda: 0),
            "lower_bounds": metric(lambda: rng.randbytes(8)),
            "upper_bounds": metric(lambda: rng.randbytes(8)),
            "split_offsets": [4],
            "sort_order_id": 0,
        },
    }


def deleted_rows(rows: int) -> Path:
    """Table b.t of ten files with six columns, and position deletes of 5 % of the rows in one delete file."""

    def make(catalog: SqlCatalog, folder: Path) -> None:
        columns = [
            ("id", "long"),
            ("k", "long"),
            ("price", "double"),
            ("name", "string"),
            ("kind", "string"),
            ("at", "timestamp"),
        ]
        table = SpecTable(catalog, "b.t", folder / "table", columns)
        rng = np.random.default_rng(7)
        each, data, deleted = rows // 10, [], []
        for number in range(10):
            ids = np.arange(each, dtype=np.int64) + number * each
            columns_ = [
                pa.array(ids),
                pa.array(rng.integers(0, 1 << 40, each)),
                pa.array(rng.random(each)),
                pa.array(np.char.add("customer-", rng.integers(0, 500_000, each).astype(str))),
                pa.array(np.array(["open", "paid", "shipped", "returned"])[rng.integers(0, 4, each)]),
                pa.array(ids * 1_000_000).cast(pa.timestamp("us")),
            ]
            path = table.path(".parquet")
            pq.write_table(pa.table(columns_, schema=table.arrow_schema()), path, compression="zstd", row_group_size=1 << 18)
            data.append(table.file(content=DATA, path=path.as_uri(), records=each, size=path.stat().st_size))
            deleted += [(path.as_uri(), int(position)) for position in np.sort(rng.choice(each, each // 20, replace=False))]
        table.commit(*data)
        table.commit(table.position_deletes(deleted, data[0]), operation="delete")

    return prepare_table(f"rows-{rows}", make)


def _deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


def _zigzag(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value & ~0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
