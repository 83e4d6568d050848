"""One task at a time: sorting within little memory, copying row groups, strange and broken inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.write import FileTarget, NewFile
from pyarctic.iceberg.write.parquet import DataFileWriter
from pyarctic.optimizing import KindChoice, Report
from pyarctic.optimizing.api import Options, optimize_table
from pyarctic.optimizing.execute.kernel.external_sort import Key, Sorter, sort_order
from pyarctic.optimizing.plan import native as plan
from pyarctic.tables import Table
from tests.models.optimized_table import SORTS, OptimizedTable, arrow
from tests.models.spec import SpecTable
from tests.support import changes
from tests.support.integrity import leftovers, on_disk
from tests.support.optimizing import InProcessEngine, optimize

ROWS = 3000
QUIET = {"self-optimizing.writers-first": "false"}


# -- sorting ----------------------------------------------------------------------------------------------------------


def column(name: str, rng: np.random.Generator) -> pa.Array:
    numbers = rng.integers(-500, 500, ROWS)
    match name:
        case "int":
            return pa.array(numbers, pa.int32())
        case "long":
            return pa.array(numbers * 2**50)
        case "float":
            return pa.array(rng.choice([np.nan, 0.0, -0.0, np.inf, -np.inf, 1.5, -2.5], ROWS).astype(np.float32))
        case "double":
            return pa.array(np.where(rng.random(ROWS) < 0.1, np.nan, rng.random(ROWS)))
        case "string":
            return pa.array([f"{number:x}é" for number in numbers])
        case "binary":
            return pa.array([int(number + 500).to_bytes(2, "little") for number in numbers])
        case "boolean":
            return pa.array(numbers > 0)
        case "date":
            return pa.array(numbers.astype(np.int32)).cast(pa.date32())
        case "time":
            return pa.array(numbers + 500).cast(pa.time64("us"))
        case "timestamp":
            return pa.array(numbers).cast(pa.timestamp("us"))
        case "timestamptz":
            return pa.array(numbers).cast(pa.timestamp("us", "UTC"))
    return pa.array([Decimal(int(number)).scaleb(-2) for number in numbers], pa.decimal128(12, 2))


TYPES = [
    "int",
    "long",
    "float",
    "double",
    "string",
    "binary",
    "boolean",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "decimal",
]


@pytest.mark.parametrize("nulls", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", TYPES)
def test_sorting_on_disk_is_sorting_in_memory(name: str, nulls: float) -> None:
    rng = np.random.default_rng(len(name))
    values = column(name, rng)
    values = pc.if_else(pa.array(rng.random(ROWS) < nulls), pa.scalar(None, values.type), values)
    rows = pa.table({"a": values, "b": rng.integers(0, 3, ROWS), "n": np.arange(ROWS)})
    for descending in (False, True):
        for nulls_last in (False, True):
            keys = [
                Key(column="a", descending=descending, nulls_last=nulls_last),
                Key(column="b", descending=not descending),
            ]
            expected = rows.take(pa.array(sort_order(rows, keys)))["n"].to_pylist()
            with Sorter(keys, 4000, lambda: pl.Series(pl.from_arrow(rows["a"])).gather_every(16)) as sorter:
                for batch in rows.to_batches(max_chunksize=700):
                    sorter.add(batch)
                found = [n for batch in sorter.batches() for n in batch.column("n").to_pylist()]
                assert sorter.spilled_bytes
            assert found == expected


@pytest.mark.parametrize("sort", [name for name in sorted(SORTS) if name != "none"])
def test_a_sorted_table_is_the_same_with_little_memory(lake: Catalog, sort: str) -> None:
    orders = []
    for name, memory in (("db.little", 8 << 10), ("db.much", 256 << 20)):
        table = OptimizedTable(lake, name, Random(7))
        table.create(3, "whole", sort, QUIET)
        for _ in range(3):
            table.append_many()
        table.position_delete()
        table.equality_delete()
        report = optimize(pyarctic.table(f"lake.{name}"), "full", memory_bytes=memory)
        assert not report.failures
        table.check()
        read = table._scan(["id", "_file", "_pos"])
        assert len(set(read["_file"].to_pylist())) == 1
        orders.append(read.sort_by("_pos")["id"].to_pylist())
    assert orders[0] == orders[1]


def test_eight_mebibytes_are_enough(lake: Catalog) -> None:
    table = OptimizedTable(lake, "db.t", Random(3))
    table.create(2, "bucket", "s, f", QUIET | {"self-optimizing.target-size": "256KiB"})
    for _ in range(4):
        table._append(5_000)
    table.equality_delete()
    table.position_delete()
    report = optimize(pyarctic.table("lake.db.t"), "full", memory_bytes=8 << 20, verify=False)
    assert not report.failures
    assert report.tasks_committed
    table.check()


# -- copying ----------------------------------------------------------------------------------------------------------


def with_groups(lake: Catalog, version: int, monkeypatch: pytest.MonkeyPatch) -> OptimizedTable:
    """Four files of 1,000 rows in row groups of 200, which are copied if nothing changes in them."""
    monkeypatch.setattr(plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), 200))
    table = OptimizedTable(lake, "db.t", Random(5))
    table.create(version, "whole", "none", QUIET | {"write.parquet.row-group-limit": "200"})
    for _ in range(4):
        rows = table._fresh(table.load(), 1000)
        loaded = table.load()
        files = written_in_groups(changes.target(loaded), arrow(loaded.schema(), rows))
        table._commit(loaded, Change(start=changes.head(loaded), add=tuple(files)))
        table.rows |= {row[1]: row for row in rows}
    table.check()
    return table


def written_in_groups(target: FileTarget, data: pa.Table) -> list[NewFile]:
    with DataFileWriter(target) as writer:
        for start in range(0, data.num_rows, 200):
            writer.write(data.slice(start, 200).combine_chunks().to_batches()[0])
    (file,) = writer.files
    assert pq.ParquetFile(file.path.removeprefix("file://")).metadata.num_row_groups == 5
    return list(writer.files)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_row_groups_without_deletes_are_copied(lake: Catalog, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_groups(lake, version, monkeypatch)
    report = optimize(pyarctic.table("lake.db.t"), "full")
    assert report.rows_copied == 4_000
    table.check()
    assert not leftovers(table.load())


@pytest.mark.parametrize("version", [2, 3])
def test_only_row_groups_with_deletes_are_encoded(lake: Catalog, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_groups(lake, version, monkeypatch)
    read = table._scan(["id", *changes.ORIGIN])
    path = min(read["_file"].to_pylist())
    hit = pc.and_(pc.equal(read["_file"], path), pc.is_in(read["_pos"], pa.array([0, 199, 200, 999])))
    dead = read.filter(hit)
    change = changes.position_delete_of(table.load(), dead)
    assert change is not None
    table._commit(table.load(), change)
    table._kill(dead["id"].to_pylist())
    report = optimize(pyarctic.table("lake.db.t"), "full")
    assert report.rows_copied == 3_400
    assert report.rows_deleted == 4
    table.check()


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_that_arrive_reach_copied_rows(lake: Catalog, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_groups(lake, version, monkeypatch)

    def others() -> None:
        for _ in range(3):
            table.position_delete()
        table.equality_delete()

    report = optimize(pyarctic.table("lake.db.t"), "full", meanwhile=others)
    assert report.rows_copied == 4_000
    assert report.rebased_rows
    assert report.tasks_dropped == 0
    table.check()


def test_copied_and_sorted_rows_do_not_mix(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of an old schema and of row lineage are encoded anew."""
    table = with_groups(lake, 3, monkeypatch)
    with table.load().update_schema() as update:
        update.add_column("late", update._schema.find_type("k"))
    table.append_many()
    report = optimize(pyarctic.table("lake.db.t"), "full")
    assert report.rows_copied == 0
    table.check()
    table.append_many()
    table.append_many()
    optimize(pyarctic.table("lake.db.t"), "full")
    table.check()


# -- other inputs -----------------------------------------------------------------------------------------------------

COLUMNS = (("id", "int"), ("name", "string"), ("part", "string"))
MAPPING = [{"field-id": number, "names": [name]} for number, (name, _) in enumerate(COLUMNS, start=1)]
ARROW = pa.schema([("id", pa.int32()), ("name", pa.string()), ("part", pa.string())])


def rows_of(numbers: Sequence[int]) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n}" if n % 3 else None, "part": "p"} for n in numbers]


def foreign(folder: Path, kind: str, rows: list[dict[str, Any]], number: int) -> Path:
    """A file without field ids."""
    path = folder / "data" / f"foreign-{number}.{kind.lower()}"
    data = pa.Table.from_pylist(rows, schema=ARROW)
    if kind == "ORC":
        orc.write_table(data, str(path))
    elif kind == "PARQUET":
        pq.write_table(data, path)
    else:
        fields = [
            {"name": name, "type": ["null", "int" if type_ == "int" else "string"], "field-id": number}
            for number, (name, type_) in enumerate(COLUMNS, start=1)
        ]
        with path.open("wb") as stream:
            fastavro.writer(stream, {"type": "record", "name": "r", "fields": fields}, rows)
    return path


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("kind", ["ORC", "AVRO", "PARQUET"])
def test_files_of_other_formats_and_without_ids(lake: Catalog, tmp_path: Path, kind: str, sort: bool) -> None:
    folder = tmp_path / "t"
    properties = QUIET | {"schema.name-mapping.default": json.dumps(MAPPING)}
    table = SpecTable(lake, "db.t", folder, COLUMNS, version=3, properties=properties)
    if sort:
        field = {"source-id": 1, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}
        table.metadata |= {"default-sort-order-id": 1, "sort-orders": [{"order-id": 1, "fields": [field]}]}
    numbers = count()
    entries = []
    for _ in range(3):
        rows = rows_of([next(numbers) for _ in range(50)])
        path = foreign(folder, kind, rows, next(numbers))
        entries.append(table.file(content=0, path=path.as_uri(), format=kind, records=50, size=path.stat().st_size))
    table.commit(*entries)
    table.commit(*table.vectors({entries[0].path: [0, 7]}, [entries[0]]), operation="delete")
    table.commit(table.equality_deletes([{"id": 60}]), operation="delete")
    opened = pyarctic.table("lake.db.t")
    columns = ["id", "name", "part", "_row_id", "_last_updated_sequence_number"]
    before = opened.scan(columns).to_arrow().sort_by("id")
    assert before.num_rows == 147
    report = optimize(opened, "full")
    assert not report.failures
    assert report.tasks_committed == 1
    after = pyarctic.table("lake.db.t").scan(columns).to_arrow().sort_by("id")
    assert after.equals(before)
    assert set(pyarctic.table("lake.db.t").files()["file_format"]) == {"PARQUET"}


def damaged(lake: Catalog, folder: Path, spoil: str) -> tuple[Table, str]:
    table = SpecTable(lake, "db.t", folder, COLUMNS, properties=QUIET)
    files = [table.data(rows_of(range(at, at + 200)), row_group_size=50) for at in (0, 200, 400)]
    bad = files[1]
    if spoil == "encrypted":
        files[1] = replace(bad, key_metadata=b"key")
    table.commit(*files)
    path = Path(bad.path.removeprefix("file://"))
    content = path.read_bytes()
    match spoil:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "footer":
            path.write_bytes(content[:-40] + b"\xff" * 32 + content[-8:])
        case "pages":
            path.write_bytes(content[:4] + bytes(byte ^ 0x5A for byte in content[4:400]) + content[400:])
    return pyarctic.table("lake.db.t"), path.name


BROKEN = [
    ("missing", "damaged", False),
    ("missing", "damaged", True),
    ("cut", "damaged", False),
    ("cut", "damaged", True),
    ("footer", "damaged", False),
    ("footer", "damaged", True),
    ("pages", "damaged", False),
    ("pages", "damaged", True),
    ("encrypted", "unsupported", False),
    ("encrypted", "unsupported", True),
]


@pytest.mark.parametrize("kind", ["minor", "full"])
@pytest.mark.parametrize(("spoil", "code", "copying"), BROKEN)
def test_broken_inputs(
    lake: Catalog, tmp_path: Path, spoil: str, code: str, copying: bool, kind: KindChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    if copying:
        monkeypatch.setattr(plan, "COPY_LEAST_ROWS", dict.fromkeys(("minor", "major", "full"), 1))
    table, name = damaged(lake, tmp_path / "t", spoil)
    before = on_disk(table._loaded)
    report = optimize_any(table, kind)
    (failure,) = report.failures
    assert failure.code == code, failure
    assert name in failure.detail
    assert not report.changed
    assert on_disk(pyarctic.table("lake.db.t")._loaded) == before


def optimize_any(table: Table, kind: KindChoice, *, verify: bool = False) -> Report:
    return optimize_table(table, InProcessEngine(), Options(kind=kind, verify=verify))
