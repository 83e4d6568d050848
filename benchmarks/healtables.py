"""Tables that need healing. Their data files are made once; a table over them takes a second, since it only names them.

Healing writes new files into the table's own folder and deletes none, so that any number of tables share the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
)

import pyarctic
from benchmarks.tables import prepared, properties
from pyarctic.iceberg.commit import Change, Committed, commit
from pyarctic.iceberg.write import (
    FileNames,
    FileTarget,
    NewFile,
    write_equality_deletes,
    write_position_deletes,
    write_vectors,
)
from pyarctic.iceberg.write.parquet import file_schema
from pyarctic.iceberg.write.parquet.metrics import parquet_metrics

CATALOG = "bench"
KEY_FILES = 20

_COLUMNS: dict[str, PrimitiveType] = {
    "id": LongType(),
    "partkey": LongType(),
    "suppkey": IntegerType(),
    "linenumber": IntegerType(),
    "quantity": DecimalType(15, 2),
    "extendedprice": DecimalType(15, 2),
    "discount": DecimalType(15, 2),
    "returnflag": StringType(),
    "shipmode": StringType(),
    "shipdate": DateType(),
    "loaded_at": TimestampType(),
    "comment": StringType(),
}
SCHEMA = Schema(*(NestedField(number, name, kind) for number, (name, kind) in enumerate(_COLUMNS.items(), 1)))
# The columns that Iceberg Java would encode with a dictionary: the others have too many values in the first page.
_WITH_DICTIONARY = ["linenumber", "quantity", "discount", "returnflag", "shipmode", "shipdate"]
_SHIP_MODES = pa.array(["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"])
_WORDS = (
    "accounts above across after against among asymptotes blithely bold braids careful carefully courts daring deposits "
    "dependencies dolphins even excuses express final fluffily foxes furiously grouches ideas instructions ironic packages "
    "patterns pending permanent pinto platelets quickly realms regular requests silent sleep slyly special theodolites "
    "thinly tithes unusual warhorses waters"
)
_PHRASES = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rot:
    """A table in need of healing: data files of a folder, and what is wrong with them beside their number."""

    data: Path
    files: int | None = None
    """Only so many of the folder's files."""
    version: int = 2
    dead_rows: float = 0.0
    """The share of rows in every file that is deleted by position: by delete files of one data file each, or vectors."""
    dead_keys: int = 0
    """So many ids of the whole folder are deleted by equality."""
    sorted_by_id: bool = False
    """The table wants its files sorted; they are not."""
    target_bytes: int = 128 << 20
    fragment_bytes: int | None = None
    """Smaller files are merged by minor healing too; an eighth of the target if it is not given."""

    def __str__(self) -> str:
        parts = [f"{len(data_files(self))} files", f"v{self.version}"]
        parts += [f"{self.dead_rows:.0%} dead rows"] if self.dead_rows else []
        parts += [f"{self.dead_keys:,} dead keys"] if self.dead_keys else []
        parts += ["to sort"] if self.sorted_by_id else []
        return ", ".join(parts)


def lineitems(files: int, rows: int) -> Path:
    """A folder of that many data files, with so many rows each; every id from zero on is in one of them, in no order."""

    def make(_: SqlCatalog, folder: Path) -> None:
        rng = np.random.default_rng(7)
        ids = rng.permutation(files * rows)
        phrases = _phrases(rng)
        for number in range(files):
            pq.write_table(
                _rows(rng, ids[number * rows : (number + 1) * rows], phrases),
                folder / f"{number:05d}.parquet",
                # As Iceberg Java writes.
                compression="zstd",
                compression_level=3,
                use_dictionary=_WITH_DICTIONARY,
                max_rows_per_page=20_000,
                store_decimal_as_integer=True,
                write_page_index=True,
                store_schema=False,
                row_group_size=rows,
            )

    return prepared(f"lineitems-{files}x{rows}", make)


def data_files(rot: Rot) -> tuple[NewFile, ...]:
    return _described(rot.data)[: rot.files]


def make_table(catalog: Catalog, name: str, rot: Rot) -> Table:
    """A new table with that rot."""
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform())) if rot.sorted_by_id else UNSORTED_SORT_ORDER
    properties = {
        "format-version": str(rot.version),
        "write.target-file-size-bytes": str(rot.target_bytes),
        # Both, or Iceberg Java writes gzip and others choose a level of their own.
        "write.parquet.compression-codec": "zstd",
        "write.parquet.compression-level": "3",
        # The deletes were made a moment ago, which looks like a writer at work.
        "self-optimizing.writers-first": "false",
    }
    if rot.fragment_bytes is not None:
        properties["self-optimizing.fragment-size"] = str(rot.fragment_bytes)
    table = catalog.create_table(name, SCHEMA, sort_order=order, properties=properties)
    table = _with(table, data_files(rot))
    return _with(table, deletes) if (deletes := _deletes(table, rot)) else table


def dead_ids(rot: Rot) -> pa.Array:
    """The ids of all rows that are deleted, by position or by key."""
    by_position = [
        pq.read_table(path.removeprefix("file://"), columns=["id"])["id"].take(pa.array(positions)).to_numpy()
        for path, positions in _dead_positions(rot).items()
    ]
    return pa.array(np.concatenate([_dead_keys(rot), *by_position]))


def _deletes(table: Table, rot: Rot) -> tuple[NewFile, ...]:
    target = FileTarget(metadata=table.metadata, io=table.io, spec_id=0, partition=(), names=FileNames())
    dead, found = _dead_positions(rot), list[NewFile]()
    if dead and rot.version > 2:
        found += write_vectors(target, dead)
    else:
        found += [write_position_deletes(target, {path: positions}) for path, positions in dead.items()]
    if rot.dead_keys:
        fields = [table.schema().find_field("id")]
        for keys in np.array_split(_dead_keys(rot), KEY_FILES):
            found.append(write_equality_deletes(target, pa.table({"id": keys}), fields))
    return tuple(found)


def _dead_positions(rot: Rot) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(8)
    return {
        file.path: np.sort(rng.choice(file.record_count, int(file.record_count * rot.dead_rows), replace=False))
        for file in (data_files(rot) if rot.dead_rows else ())
    }


def _dead_keys(rot: Rot) -> np.ndarray:
    rows = sum(file.record_count for file in _described(rot.data))
    return np.random.default_rng(9).choice(rows, rot.dead_keys, replace=False)


def _with(table: Table, files: tuple[NewFile, ...]) -> Table:
    outcome = commit(table, Change(start=table.metadata.current_snapshot_id, add=files))
    assert isinstance(outcome, Committed), outcome
    return table.catalog.load_table(table.name())


@cache
def _described(folder: Path) -> tuple[NewFile, ...]:
    """The folder's data files as a manifest tells of them."""
    found = []
    for path in sorted(folder.glob("*.parquet")):
        metadata = pq.read_metadata(path)
        metrics, offsets = parquet_metrics(metadata, SCHEMA.fields, {}, {})
        found.append(
            NewFile(
                content=0,
                path=path.as_uri(),
                file_format="PARQUET",
                spec_id=0,
                partition=(),
                record_count=metadata.num_rows,
                file_size_bytes=path.stat().st_size,
                metrics=metrics,
                split_offsets=offsets,
            )
        )
    return tuple(found)


def _rows(rng: np.random.Generator, ids: np.ndarray, phrases: pa.Array) -> pa.Table:
    count = len(ids)
    suppliers, parts = 100_000, 2_000_000
    shipped = rng.integers(8_000, 10_557, count)
    # Within a month after shipping, to the millisecond.
    loaded = (shipped * 86_400_000 + rng.integers(0, 30 * 86_400_000, count)) * 1_000
    columns = [
        pa.array(ids),
        pa.array(rng.integers(1, parts, count)),
        pa.array(rng.integers(1, suppliers, count, dtype=np.int32)),
        pa.array(rng.integers(1, 8, count, dtype=np.int32)),
        _decimals(rng.integers(1, 51, count) * 100),
        _decimals(rng.integers(90_000, 10_500_000, count)),
        _decimals(rng.integers(0, 11, count)),
        pa.array(["A", "N", "R"]).take(pa.array(rng.choice(3, count, p=[0.25, 0.5, 0.25]))),
        _SHIP_MODES.take(pa.array(rng.integers(0, len(_SHIP_MODES), count))),
        pa.array(shipped).cast(pa.int32()).cast(pa.date32()),
        pa.array(loaded).cast(pa.timestamp("us")),
        phrases.take(pa.array(rng.integers(0, len(phrases), count))),
    ]
    return pa.Table.from_arrays(columns, schema=file_schema(SCHEMA.fields))


def _decimals(hundredths: np.ndarray) -> pa.Array:
    """Hundredths as decimal(15, 2): such a decimal is a number of 128 bits, of which the upper half is empty here."""
    halves = np.zeros((len(hundredths), 2), dtype=np.int64)
    halves[:, 0] = hundredths
    return pa.Array.from_buffers(pa.decimal128(15, 2), len(hundredths), [None, pa.py_buffer(halves)])


def _phrases(rng: np.random.Generator) -> pa.Array:
    known = pa.array(_WORDS.split())
    words = [known.take(pa.array(rng.integers(0, len(known), _PHRASES))) for _ in range(5)]
    # As TPC-H's comments: the text is cut anywhere.
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*words, " "), 0, 38)


def open_catalog(folder: Path) -> Catalog:
    """The catalog of a folder, as both sides see it; the name is part of the key in its database."""
    return pyarctic.catalog(CATALOG, **properties(folder))
