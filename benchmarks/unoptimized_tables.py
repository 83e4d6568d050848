"""Tables that need optimizing. Their data files are created once; creating a table takes a second, since it only adds them.

Optimizing writes new files into the folder of the table and deletes none, so that any number of tables can share the data.
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
from benchmarks.tables import prepare_table, properties
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
class TableSetup:
    """A table that needs optimizing: the data files of a folder, and their deletes and order."""

    data: Path
    files: int | None = None
    """Use only this many files of the folder."""
    version: int = 2
    deleted_fraction: float = 0.0
    """The fraction of rows of every file that is deleted by position, with one delete file or vector per data file."""
    deleted_keys: int = 0
    """The number of ids, of all files of the folder, that are deleted by equality."""
    sorted_by_id: bool = False
    """The table has a sort order; the files are not sorted."""
    target_bytes: int = 128 << 20
    fragment_bytes: int | None = None
    """Smaller files are merged by minor optimizing too; the default is an eighth of the target."""

    def __str__(self) -> str:
        parts = [f"{len(data_files(self))} files", f"v{self.version}"]
        parts += [f"{self.deleted_fraction:.0%} deleted rows"] if self.deleted_fraction else []
        parts += [f"{self.deleted_keys:,} deleted keys"] if self.deleted_keys else []
        parts += ["to sort"] if self.sorted_by_id else []
        return ", ".join(parts)


def lineitem_files(files: int, rows: int) -> Path:
    """A folder with this many data files of this many rows; each id from zero is in one of them, in random order."""

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

    return prepare_table(f"lineitems-{files}x{rows}", make)


def data_files(setup: TableSetup) -> tuple[NewFile, ...]:
    return _describe_files(setup.data)[: setup.files]


def make_table(catalog: Catalog, name: str, setup: TableSetup) -> Table:
    """Create a table with this setup."""
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform())) if setup.sorted_by_id else UNSORTED_SORT_ORDER
    properties = {
        "format-version": str(setup.version),
        "write.target-file-size-bytes": str(setup.target_bytes),
        # Both, or Iceberg Java writes gzip and others choose another level.
        "write.parquet.compression-codec": "zstd",
        "write.parquet.compression-level": "3",
        # The deletes are recent, which looks like an active writer.
        "self-optimizing.writers-first": "false",
    }
    if setup.fragment_bytes is not None:
        properties["self-optimizing.fragment-size"] = str(setup.fragment_bytes)
    table = catalog.create_table(name, SCHEMA, sort_order=order, properties=properties)
    table = _commit_files(table, data_files(setup))
    return _commit_files(table, deletes) if (deletes := _deletes(table, setup)) else table


def deleted_ids(setup: TableSetup) -> pa.Array:
    """The ids of all deleted rows, by position or by key."""
    by_position = [
        pq.read_table(path.removeprefix("file://"), columns=["id"])["id"].take(pa.array(positions)).to_numpy()
        for path, positions in _deleted_positions(setup).items()
    ]
    return pa.array(np.concatenate([_deleted_keys(setup), *by_position]))


def _deletes(table: Table, setup: TableSetup) -> tuple[NewFile, ...]:
    target = FileTarget(metadata=table.metadata, io=table.io, spec_id=0, partition=(), names=FileNames())
    deleted, files = _deleted_positions(setup), list[NewFile]()
    if deleted and setup.version > 2:
        files += write_vectors(target, deleted)
    else:
        files += [write_position_deletes(target, {path: positions}) for path, positions in deleted.items()]
    if setup.deleted_keys:
        fields = [table.schema().find_field("id")]
        for keys in np.array_split(_deleted_keys(setup), KEY_FILES):
            files.append(write_equality_deletes(target, pa.table({"id": keys}), fields))
    return tuple(files)


def _deleted_positions(setup: TableSetup) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(8)
    return {
        file.path: np.sort(rng.choice(file.record_count, int(file.record_count * setup.deleted_fraction), replace=False))
        for file in (data_files(setup) if setup.deleted_fraction else ())
    }


def _deleted_keys(setup: TableSetup) -> np.ndarray:
    rows = sum(file.record_count for file in _describe_files(setup.data))
    return np.random.default_rng(9).choice(rows, setup.deleted_keys, replace=False)


def _commit_files(table: Table, files: tuple[NewFile, ...]) -> Table:
    outcome = commit(table, Change(start=table.metadata.current_snapshot_id, add=files))
    assert isinstance(outcome, Committed), outcome
    return table.catalog.load_table(table.name())


@cache
def _describe_files(folder: Path) -> tuple[NewFile, ...]:
    """The data files of the folder, as manifest entries."""
    files = []
    for path in sorted(folder.glob("*.parquet")):
        metadata = pq.read_metadata(path)
        metrics, offsets = parquet_metrics(metadata, SCHEMA.fields, {}, {})
        files.append(
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
    return tuple(files)


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
    vocabulary = pa.array(_WORDS.split())
    words = [vocabulary.take(pa.array(rng.integers(0, len(vocabulary), _PHRASES))) for _ in range(5)]
    # Like the comments of TPC-H, the text is cut anywhere.
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*words, " "), 0, 38)


def open_catalog(folder: Path) -> Catalog:
    """The catalog of a folder for both sides; its name is part of the key in its database."""
    return pyarctic.catalog(CATALOG, **properties(folder))
