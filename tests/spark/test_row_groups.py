"""Row groups of Iceberg Java's files, copied into one file: read by Spark and by Iceberg, with and without pruning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyarctic.iceberg.write import FileNames, FileTarget
from pyarctic.iceberg.write.parquet import DataFileWriter
from pyarctic.iceberg.write.parquet.row_group_source import RowGroupSource
from pyarctic.iceberg.write.parquet.row_group_writer import RowGroupWriter
from tests.oracle.compare import assert_same_rows, multiset
from tests.oracle.session import Oracle

pytestmark = pytest.mark.jvm

COLUMNS = (
    "id bigint, name string, ratio double, price decimal(12, 2), day date, at timestamp, tags array<string>, "
    "place struct<x: int, y: map<string, int>>"
)
ROWS = """
    id, if(id % 5 = 0, null, concat('name-', id)), if(id % 7 = 0, double('NaN'), id / 3), cast(id as decimal(12, 2)),
    date_add(date'2024-01-01', cast(id % 1000 as int)), timestamp_seconds(id), if(id % 4 = 0, null, array('t', null)),
    named_struct('x', cast(id as int), 'y', map('k', cast(id % 3 as int)))
"""
FILE_ROWS = 3000
FILES = 3


@pytest.fixture(scope="module", params=["zstd", "gzip"])
def original(oracle: Oracle, request: pytest.FixtureRequest) -> str:
    """A table of some files that Iceberg Java wrote, with small row groups, small pages and bloom filters."""
    table = f"{oracle.namespace()}.original"
    properties = {
        "write.parquet.compression-codec": request.param,
        "write.parquet.row-group-size-bytes": 10_000,
        "write.parquet.row-group-check-min-record-count": 500,
        "write.parquet.row-group-check-max-record-count": 500,
        "write.parquet.page-row-limit": 100,
        "write.parquet.bloom-filter-enabled.column.name": "true",
        "write.parquet.bloom-filter-max-bytes": 4096,
    }
    told = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
    oracle.sql(f"create table {table} ({COLUMNS}) using iceberg tblproperties ({told})")
    for number in range(FILES):
        oracle.sql(f"insert into {table} select /*+ coalesce(1) */ {ROWS} from {_ids(number)} order by id")
    return table


def _ids(number: int) -> str:
    return f"(select id from range({number * FILE_ROWS}, {(number + 1) * FILE_ROWS}, 1, 1))"


@pytest.fixture(scope="module")
def sources(oracle: Oracle, original: str) -> list[Path]:
    files = oracle.sql(f"select file_path from {original}.files order by file_path").toArrow()["file_path"].to_pylist()
    assert len(files) == FILES
    return [_local(path) for path in files]


@pytest.fixture(scope="module")
def copy(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _copied(sources, tmp_path_factory.mktemp("copy") / "copy.parquet")


def _local(path: str) -> Path:
    return Path(path.removeprefix("file:"))


def _copied(paths: list[Path], target: Path, beside: bool = False) -> Path:
    with target.open("wb") as out:
        writer = RowGroupWriter(out)
        for path in paths:
            with path.open("rb") as stream:
                source = RowGroupSource.open(stream, str(path))
                if not beside:
                    writer.append_all(source)
                    continue
                for index, group in enumerate(source.groups):
                    writer.append(source, index, _lineage(writer.rows, group.rows))
        writer.close()
    return target


def _lineage(start: int, rows: int) -> RowGroupSource:
    fields = [("_row_id", 2147483540, range(start, start + rows)), ("_last_updated_sequence_number", 2147483539, [1] * rows)]
    schema = pa.schema([pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(key)}) for name, key, _ in fields])
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table([pa.array(values, pa.int64()) for *_, values in fields], schema=schema), sink, store_schema=False
    )
    return RowGroupSource.of_bytes(sink.getvalue())


@contextmanager
def configured(oracle: Oracle, **values: str) -> Iterator[None]:
    names = {key.replace("__", "."): value for key, value in values.items()}
    before = {key: oracle.spark.conf.get(key, None) for key in names}
    try:
        for key, value in names.items():
            oracle.spark.conf.set(key, value)
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                oracle.spark.conf.unset(key)
            else:
                oracle.spark.conf.set(key, earlier)


def rows_read(frame: Any) -> int:
    """How many rows left the scan, before Spark's own filter. Run the query first."""
    plan = frame._jdf.queryExecution().executedPlan()
    plan = plan.executedPlan() if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec" else plan
    leaf = plan.collectLeaves().head()
    return int(leaf.metrics().apply("numOutputRows").value())


@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_spark_reads_and_prunes(oracle: Oracle, original: str, sources: list[Path], copy: Path, vectorized: str) -> None:
    assert pq.read_metadata(copy).num_row_groups > FILES
    with configured(oracle, spark__sql__parquet__enableVectorizedReader=vectorized):
        frame, before = oracle.spark.read.parquet(str(copy)), oracle.spark.read.parquet(*map(str, sources))
        assert multiset(frame.toArrow()) == multiset(oracle.rows(original))
        for condition, expected, most in [
            ("id between 4000 and 4010", 11, 500),  # one row group
            ("name = 'name-4001'", 1, 500),
            ("name = 'name-4001x'", 0, 0),  # only the bloom filters know
            ("price > 8990", 9, 100),  # one page
            ("day = date'2024-01-02'", 9, 4500),
            ("id = -1", 0, 0),
        ]:
            found, found_before = frame.where(condition), before.where(condition)
            assert found.toArrow().num_rows == found_before.toArrow().num_rows == expected
            assert rows_read(found) == rows_read(found_before) <= most, condition


def test_java_finds_indexes_and_bloom_filters(oracle: Oracle, sources: list[Path], copy: Path) -> None:
    """What parquet-java reads of every column chunk is the same in the copy; only places differ."""
    java = oracle.java
    configuration = oracle.spark.sparkContext._jsc.hadoopConfiguration()

    def facts(path: Path) -> list[Any]:
        file = java.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(
            java.org.apache.hadoop.fs.Path(str(path)), configuration
        )
        reader = java.org.apache.parquet.hadoop.ParquetFileReader.open(file)
        found = []
        for group in reader.getFooter().getBlocks():
            start = group.getStartingPos()
            for chunk in group.getColumns():
                offsets, columns = reader.readOffsetIndex(chunk), reader.readColumnIndex(chunk)
                bloom = reader.readBloomFilter(chunk)
                pages = [
                    (offsets.getOffset(page) - start, offsets.getFirstRowIndex(page))
                    for page in range(offsets.getPageCount())
                ]
                told = str(chunk.getStatistics()), str(columns), None if bloom is None else bloom.getBitsetSize()
                found.append((group.getRowCount(), chunk.getTotalSize(), pages, *told))
        reader.close()
        return found

    before = [fact for path in sources for fact in facts(path)]
    after = facts(copy)
    assert after == before
    assert any(bloom for *_, bloom in after)


@pytest.mark.parametrize("vectorized", ["true", "false"])
@pytest.mark.parametrize("version", [2, 3])
def test_iceberg_reads_and_prunes(
    oracle: Oracle, original: str, sources: list[Path], tmp_path: Path, version: int, vectorized: str
) -> None:
    table = f"{oracle.namespace()}.copy"
    properties = f"'format-version'='{version}', 'read.parquet.vectorization.enabled'='{vectorized}'"
    splits = "'read.split.target-size'='40000'"
    oracle.sql(f"create table {table} ({COLUMNS}) using iceberg tblproperties ({properties}, {splits})")
    lineage = version == 3
    _append(oracle, table, _copied(sources[::-1], tmp_path / "copy.parquet", beside=lineage))
    assert multiset(assert_same_rows(oracle, table)) == multiset(oracle.rows(original))
    for condition, expected, most in [
        ("id between 4000 and 4010", 11, 1500),
        ("name = 'name-4001'", 1, 1500),
        ("name = 'name-4001x'", 0, 0),  # only the bloom filters know
        ("tags is null", 3 * FILE_ROWS // 4, 3 * FILE_ROWS),
    ]:
        found = oracle.sql(f"select * from {table} where {condition}")
        assert found.toArrow().num_rows == expected
        assert rows_read(found) <= most, condition
        assert_same_rows(oracle, table, where=condition)
    if lineage:
        ids = oracle.rows(table, "id, _row_id, _last_updated_sequence_number")
        assert sorted(ids["_row_id"].to_pylist()) == [*range(FILES * FILE_ROWS)]
        first = dict(zip(ids["_row_id"].to_pylist(), ids["id"].to_pylist(), strict=True))
        assert (first[0], first[FILES * FILE_ROWS - 1]) == ((FILES - 1) * FILE_ROWS, FILE_ROWS - 1)


def _append(oracle: Oracle, table: str, file: Path) -> None:
    """Java reads the footer for the metrics."""
    oracle.sql(f"call {oracle.name}.system.add_files(table => '{table}', source_table => '`parquet`.`{file}`')")


def test_every_row_group_is_read_once_however_the_file_is_split(oracle: Oracle, original: str, copy: Path) -> None:
    """Spark cuts files at any byte and gives a row group to the piece that holds its middle."""
    size = str(max(copy.stat().st_size // 7, 1))
    with configured(oracle, spark__sql__files__maxPartitionBytes=size, spark__sql__files__openCostInBytes="0"):
        frame = oracle.spark.read.parquet(str(copy))
        assert frame.rdd.getNumPartitions() > 3
        assert multiset(frame.toArrow()) == multiset(oracle.rows(original))


def test_files_of_java_and_ours_in_one(oracle: Oracle, tmp_path: Path) -> None:
    table = f"{oracle.namespace()}.mixed"
    oracle.sql(f"create table {table} (id bigint, name string, day date, ratio double, tags array<string>) using iceberg")
    # Spark writes columns without nulls in the statement as required ones: such a file would not fit.
    values = "(1, 'one', date'2024-01-01', 1.5, array('a', null)), (null, null, null, null, null)"
    oracle.sql(f"insert into {table} select /*+ coalesce(1) */ * from values {values}")
    loaded = oracle.catalog.load_table(table)
    place = FileTarget(metadata=loaded.metadata, io=loaded.io, spec_id=0, partition=(), names=FileNames())
    rows = oracle.rows(table)
    with DataFileWriter(place) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
    (java_file,) = oracle.sql(f"select file_path from {table}.files").toArrow()["file_path"].to_pylist()
    path = _copied([_local(java_file), _local(writer.files[0].path.removeprefix("file://"))], tmp_path / "mixed.parquet")
    assert multiset(oracle.spark.read.parquet(str(path)).toArrow()) == multiset(pa.concat_tables([rows, rows]))
