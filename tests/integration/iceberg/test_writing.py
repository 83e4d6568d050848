"""Files written for a table: what they hold, what is said of them, and where they lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyarctic.errors import UsageError
from pyarctic.iceberg.write import (
    FileNames,
    FileTarget,
    NewFile,
    write_equality_deletes,
    write_position_deletes,
    write_vectors,
)
from pyarctic.iceberg.write.parquet import DataFileWriter
from tests.integration.iceberg.conftest import Lake
from tests.models.spec.adopt import adopted

COLUMNS = [("id", "long"), ("name", "string"), ("ratio", "double"), ("at", "timestamp")]


def target(lake: Lake, partition: tuple[Any, ...] = ()) -> FileTarget:
    loaded = lake.catalog.load_table("db.t")
    return FileTarget(
        metadata=loaded.metadata,
        io=loaded.io,
        spec_id=loaded.metadata.default_spec_id,
        partition=partition,
        names=FileNames(),
    )


def batch(start: int, count: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([None if i % 5 == 0 else f"customer-number-{i:09d}" for i in ids]),
            "ratio": pa.array([float("nan") if i % 7 == 0 else i / 3 for i in ids]),
            "at": pa.array(ids * 1_000_000, pa.timestamp("us")),
        }
    )


def local(file: NewFile) -> Path:
    return Path(file.path.removeprefix("file://"))


def test_rows_come_back_and_metrics_are_complete(lake: Lake) -> None:
    table = lake.make(columns=COLUMNS)
    with DataFileWriter(target(lake)) as writer:
        writer.write(batch(0, 70))
        writer.write(batch(70, 30))
    (file,) = writer.files
    table.commit(adopted(file))
    # As text, because NaN does not equal itself.
    assert repr(lake.open().scan().to_arrow().to_pylist()) == repr(batch(0, 100).to_pylist())
    assert file.record_count == 100
    assert file.file_size_bytes == local(file).stat().st_size
    metrics = file.metrics
    assert metrics.value_counts == {1: 100, 2: 100, 3: 100, 4: 100}
    assert metrics.null_counts == {1: 0, 2: 20, 3: 0, 4: 0}
    assert metrics.nan_counts == {3: 15}
    assert metrics.lower_bounds[1] == struct.pack("<q", 0)
    assert metrics.upper_bounds[1] == struct.pack("<q", 99)
    assert metrics.lower_bounds[2] == b"customer-number-"
    assert metrics.upper_bounds[2] == b"customer-number."  # cut after 16 characters and moved up
    assert metrics.upper_bounds[3] == struct.pack("<d", 33.0)
    assert sum(metrics.column_sizes.values()) < file.file_size_bytes
    assert file.split_offsets == (4,)


@pytest.mark.parametrize(
    ("mode", "counted", "bounded"),
    [
        ("none", False, None),
        ("counts", True, None),
        ("full", True, b"customer-number-000000001"),
        ("truncate(3)", True, b"cus"),
    ],
)
def test_metrics_follow_the_table_s_properties(lake: Lake, mode: str, counted: bool, bounded: bytes | None) -> None:
    lake.make(columns=COLUMNS, properties={"write.metadata.metrics.column.name": mode})
    with DataFileWriter(target(lake)) as writer:
        writer.write(batch(0, 10))
    metrics = writer.files[0].metrics
    assert (2 in metrics.value_counts) == counted
    assert metrics.lower_bounds.get(2) == bounded
    assert 1 in metrics.lower_bounds


def test_files_roll_at_the_target_size(lake: Lake) -> None:
    wanted = 200_000
    table = lake.make(columns=COLUMNS, properties={"write.target-file-size-bytes": str(wanted)})
    with DataFileWriter(target(lake)) as writer:
        for start in range(0, 200_000, 2_000):
            writer.write(batch(start, 2_000))
    sizes = [file.file_size_bytes for file in writer.files]
    assert len(sizes) > 3
    assert all(wanted * 0.8 < size < wanted * 1.3 for size in sizes[:-1]), sizes
    table.commit(*map(adopted, writer.files))
    assert lake.open().scan().count() == 200_000
    assert len({file.path for file in writer.files}) == len(sizes)


def test_row_groups_and_codec_follow_the_properties(lake: Lake) -> None:
    lake.make(
        columns=COLUMNS, properties={"write.parquet.row-group-limit": "1000", "write.parquet.compression-codec": "gzip"}
    )
    with DataFileWriter(target(lake)) as writer:
        for start in range(0, 5_000, 500):
            writer.write(batch(start, 500))
    metadata = pq.read_metadata(local(writer.files[0]))
    assert metadata.num_row_groups == 5
    assert metadata.row_group(0).column(0).compression == "GZIP"
    assert len(writer.files[0].split_offsets) == 5


@pytest.mark.parametrize(
    "properties",
    [
        {"write.parquet.compression-codec": "rar"},
        {"write.target-file-size-bytes": "large"},
        {"write.parquet.page-size-bytes": "-1"},
    ],
)
def test_bad_properties_are_named(lake: Lake, properties: dict[str, str]) -> None:
    lake.make(columns=COLUMNS, properties=properties)
    with pytest.raises(UsageError, match=next(iter(properties))):
        DataFileWriter(target(lake))


@pytest.mark.parametrize(
    "wrong",
    [
        pa.record_batch({"id": [1]}),
        pa.record_batch({"id": ["x"], "name": ["a"], "ratio": [1.0], "at": pa.array([0], pa.timestamp("us"))}),
        batch(0, 1).append_column("more", pa.array([1])),
    ],
)
def test_rows_that_do_not_fit_leave_nothing_behind(lake: Lake, wrong: pa.RecordBatch) -> None:
    lake.make(columns=COLUMNS)
    place = target(lake)

    def write() -> None:
        with DataFileWriter(place) as writer:
            writer.write(batch(0, 10))
            writer.flush()
            assert list((lake.folder / "t" / "data").iterdir())
            writer.write(wrong)

    with pytest.raises(UsageError):
        write()
    assert not list((lake.folder / "t" / "data").iterdir())


def test_paths_tell_the_partition_and_never_collide(lake: Lake) -> None:
    lake.make(columns=COLUMNS, partition=[("name", "identity"), ("id", "bucket[4]")])
    place = target(lake, ("a b/c", None))
    path = place.new_path(".parquet")
    assert "/data/name=a b%2Fc/id_bucket=null/00000-0-" in path
    assert len({target(lake, ("x", 1)).new_path(".parquet") for _ in range(100)}) == 100


def test_object_storage_layout(lake: Lake) -> None:
    lake.make(columns=COLUMNS, properties={"write.object-storage.enabled": "true"})
    path = target(lake).new_path(".parquet")
    assert path.count("/") > f"{(lake.folder / 't').as_uri()}/data/x".count("/")


def test_target_must_fit_the_spec(lake: Lake) -> None:
    lake.make(columns=COLUMNS, partition=[("name", "identity")])
    with pytest.raises(UsageError, match="0 partition values given, spec 0 has 1"):
        target(lake)


def test_position_deletes(lake: Lake) -> None:
    table = lake.make(columns=COLUMNS)
    with DataFileWriter(target(lake)) as writer:
        writer.write(batch(0, 20))
    with DataFileWriter(target(lake)) as second:
        second.write(batch(20, 20))
    data = [adopted(writer.files[0]), adopted(second.files[0])]
    table.commit(*data)
    one = write_position_deletes(target(lake), {data[0].path: np.array([3, 1, 3])})
    assert one.referenced_data_file == data[0].path
    assert one.record_count == 2
    both = write_position_deletes(target(lake), {data[1].path: np.array([0]), data[0].path: np.array([5])})
    assert both.referenced_data_file is None
    table.commit(adopted(one), adopted(both), operation="delete")
    assert lake.open().scan().to_arrow()["id"].to_pylist() == sorted({*range(40)} - {1, 3, 5, 20})


def test_equality_deletes(lake: Lake) -> None:
    table = lake.make(columns=COLUMNS)
    with DataFileWriter(target(lake)) as writer:
        writer.write(batch(0, 12))
    table.commit(adopted(writer.files[0]))
    place = target(lake)
    fields = [place.schema.find_field("id"), place.schema.find_field("name")]
    keys = pa.table({"name": pa.array([None, "customer-number-000000002", "x"]), "id": pa.array([5, 2, 3], pa.int32())})
    deletes = write_equality_deletes(place, keys, fields)
    assert deletes.equality_ids == (1, 2)
    assert deletes.metrics.null_counts == {1: 0, 2: 1}
    table.commit(adopted(deletes), operation="delete")
    assert sorted(lake.open().scan().to_arrow()["id"].to_pylist()) == sorted({*range(12)} - {5, 2})
    with pytest.raises(UsageError, match="do not fit"):
        write_equality_deletes(place, keys.drop_columns("name"), fields)


def test_vectors(lake: Lake) -> None:
    table = lake.make(columns=COLUMNS, version=3)
    files = []
    for start in (0, 20):
        with DataFileWriter(target(lake)) as writer:
            writer.write(batch(start, 20))
        files.append(adopted(writer.files[0]))
    table.commit(*files)
    dead = {files[0].path: np.array([1, 2, 19]), files[1].path: np.array([0])}
    vectors = write_vectors(target(lake), dead)
    assert [vector.record_count for vector in vectors] == [len(dead[v.referenced_data_file or ""]) for v in vectors]
    assert len({vector.path for vector in vectors}) == 1
    table.commit(*map(adopted, vectors), operation="delete")
    assert lake.open().scan().to_arrow()["id"].to_pylist() == sorted({*range(40)} - {1, 2, 19, 20})


@pytest.mark.parametrize(("version", "kind"), [(1, "positions"), (3, "positions"), (2, "vectors"), (1, "equality")])
def test_deletes_of_another_format_version_are_refused(lake: Lake, version: int, kind: str) -> None:
    lake.make(columns=COLUMNS, version=version)
    place, dead = target(lake), {"file:///x.parquet": np.array([1])}
    field = place.schema.find_field("id")
    writes: dict[str, Callable[[], object]] = {
        "positions": lambda: write_position_deletes(place, dead),
        "vectors": lambda: write_vectors(place, dead),
        "equality": lambda: write_equality_deletes(place, pa.table({"id": [1]}), [field]),
    }
    with pytest.raises(UsageError, match="version"):
        writes[kind]()
    assert not list((lake.folder / "t" / "data").iterdir())


def test_nothing_to_delete_is_refused(lake: Lake) -> None:
    lake.make(columns=COLUMNS)
    with pytest.raises(UsageError, match="no position"):
        write_position_deletes(target(lake), {"file:///x": np.array([], dtype=np.int64)})
