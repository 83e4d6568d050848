"""Row groups copied without decoding: what readers find in the copy, and what is refused."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO

from pyarctic.errors import Damaged, Unavailable
from pyarctic.iceberg.write.parquet import row_group_source as parquetsource
from pyarctic.iceberg.write.parquet import row_group_writer as rowgroups
from pyarctic.iceberg.write.parquet.footer import NotCopyable
from pyarctic.iceberg.write.parquet.row_group_source import RowGroupSource
from pyarctic.iceberg.write.parquet.row_group_writer import RowGroupWriter
from pyarctic.iceberg.write.parquet.thrift import (
    BINARY,
    I32,
    I64,
    STRUCT,
    Span,
    encode_binary,
    encode_fields,
    encode_list,
    encode_number,
    number,
    read_list,
    read_struct,
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "1"}),
        pa.field("name", pa.string(), metadata={"PARQUET:field_id": "2"}),
        pa.field("ratio", pa.float64(), metadata={"PARQUET:field_id": "3"}),
        pa.field("tags", pa.list_(pa.field("element", pa.string())), metadata={"PARQUET:field_id": "4"}),
        pa.field("place", pa.struct([("x", pa.int32()), ("ys", pa.list_(pa.int32()))]), metadata={"PARQUET:field_id": "6"}),
        pa.field("price", pa.decimal128(12, 2), metadata={"PARQUET:field_id": "10"}),
        pa.field("flag", pa.bool_(), metadata={"PARQUET:field_id": "11"}),
    ]
)
LINEAGE = pa.schema(
    [
        pa.field("_row_id", pa.int64(), metadata={"PARQUET:field_id": "2147483540"}),
        pa.field("_last_updated_sequence_number", pa.int64(), metadata={"PARQUET:field_id": "2147483539"}),
    ]
)


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        [
            pa.array(numbers, pa.int64()),
            pa.array([None if i % 5 == 0 else f"name-{i % 17}" for i in numbers], pa.string()),
            pa.array([float("nan") if i % 7 == 0 else i / 3 for i in numbers], pa.float64()),
            pa.array([None if i % 4 == 0 else [f"t{j}" for j in range(i % 3)] for i in numbers], SCHEMA.field("tags").type),
            pa.array([None if i % 6 == 0 else {"x": i, "ys": [i] * (i % 2)} for i in numbers], SCHEMA.field("place").type),
            pa.array([Decimal(i) / 4 for i in numbers], pa.decimal128(12, 2)),
            pa.array([i % 3 == 0 for i in numbers], pa.bool_()),
        ],
        schema=SCHEMA,
    )


def written(table: pa.Table, **settings: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"store_schema": False, **settings})
    return bytes(sink.getvalue())


def copied(*pieces: tuple[RowGroupSource, int], beside: Sequence[RowGroupSource] = ()) -> bytes:
    sink = io.BytesIO()
    writer = RowGroupWriter(sink)
    for place, (source, index) in enumerate(pieces):
        writer.append(source, index, beside[place] if beside else None)
    metadata = writer.close()
    data = sink.getvalue()
    assert metadata.equals(pq.read_metadata(pa.BufferReader(data)))
    assert (writer.tell(), writer.rows) == (len(data), metadata.num_rows)
    return data


def all_of(*sources: RowGroupSource) -> bytes:
    return copied(*[(source, index) for source in sources for index in range(len(source.groups))])


def read(data: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(data))


def frame(table: pa.Table) -> pl.DataFrame:
    made = pl.from_arrow(table)
    assert isinstance(made, pl.DataFrame)
    return made


def read_groups(*pieces: tuple[bytes, int]) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(pa.BufferReader(data)).read_row_group(index) for data, index in pieces])


FILE_SETTINGS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "version": st.sampled_from(["1.0", "2.6"]),
        "write_page_index": st.booleans(),
        "write_page_checksum": st.booleans(),
        "write_statistics": st.booleans(),
        "use_dictionary": st.booleans() | st.just(["name"]),
        "row_group_size": st.integers(20, 100),
        "data_page_size": st.sampled_from([100, 1 << 20]),
        "write_batch_size": st.sampled_from([7, 1024]),
        "bloom_filter_options": st.sampled_from([None, {"name": {"ndv": 20}}, {"id": {"ndv": 9}, "place.x": {"ndv": 500}}]),
        "sorting_columns": st.sampled_from([None, [pq.SortingColumn(0)]]),
    }
)


@settings(max_examples=60)
@given(st.data())
def test_any_row_groups_of_any_files_in_any_order(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 150), FILE_SETTINGS), min_size=1, max_size=4))
    files = [written(rows(place * 1000, count), **settings) for place, (count, settings) in enumerate(shapes)]
    sources = [RowGroupSource.of_bytes(file) for file in files]
    there = [
        (place, index) for place, source in enumerate(sources) for index, group in enumerate(source.groups) if group.rows
    ]
    picked = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=8))
    copy = copied(*[(sources[place], index) for place, index in picked])
    expected = read_groups(*[(files[place], index) for place, index in picked])
    assert repr(read(copy).to_pylist()) == repr(expected.to_pylist())  # by their text, in which NaN equals NaN
    assert pl.read_parquet(copy).equals(frame(expected))
    for place, (file, index) in enumerate(picked):
        assert_same_group(files[file], index, copy, place)


def assert_same_group(old: bytes, old_index: int, new: bytes, new_index: int) -> None:
    """Statistics, indexes, bloom filters and all else that is said of a row group."""
    before, after = (
        pq.read_metadata(pa.BufferReader(data)).row_group(index) for data, index in ((old, old_index), (new, new_index))
    )
    for name in ("num_rows", "total_byte_size", "sorting_columns"):
        assert getattr(before, name) == getattr(after, name)
    chunks = [read_chunks(data, index) for data, index in ((old, old_index), (new, new_index))]
    for column, (one, other) in enumerate(zip(*chunks, strict=True)):
        said = [group.column(column).to_dict() for group in (before, after)]
        for facts in said:
            for moved in ("file_offset", "data_page_offset", "dictionary_page_offset", "bloom_filter_offset"):
                facts.pop(moved, None)
        assert repr(said[0]) == repr(said[1])
        assert one == other


def read_chunks(data: bytes, index: int) -> list[dict[str, Any]]:
    """What lies where the footer points to. The pages are found by their offset index, and by their own headers."""
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]

    def chunk(data: bytes, position: int) -> tuple[Any, int]:
        return read_struct(data, position, {3: read_struct})

    def group(data: bytes, position: int) -> tuple[Any, int]:
        return read_struct(data, position, {1: lambda data, position: read_list(data, position, chunk)})

    fields, _ = read_struct(footer, 0, {4: lambda data, position: read_list(data, position, group)})
    chunks = fields[4][index][1]
    found = []
    for column in chunks:
        told = {key: number(footer, span) for key, span in column.items() if key != 3}
        about = {key: number(footer, span) for key, span in column[3].items() if I32 <= span[0] <= I64}
        start = min((about[key] for key in (9, 11) if about.get(key, 0)), default=0)
        pages = data[start : start + about[7]]
        column_index = data[told[6] : told[6] + told[7]] if 6 in told else None
        locations = []
        if 4 in told:
            offset_index = data[told[4] : told[4] + told[5]]
            parsed, end = read_struct(offset_index, 0, {1: lambda data, position: read_list(data, position, read_struct)})
            assert end == len(offset_index)
            for page in parsed[1]:
                place, size, row = (number(offset_index, page[key]) for key in (1, 2, 3))
                header, header_end = read_struct(data, place)
                assert header_end + number(data, header[3]) == place + size
                locations.append((place - start, size, row))
        bloom = data[about[14] : about[14] + about[15]] if 14 in about else None
        found.append({"pages": pages, "column index": column_index, "locations": locations, "bloom": bloom})
    return found


def test_the_whole_file_is_described_as_before() -> None:
    data = written(rows(0, 300), row_group_size=100, write_page_index=True, compression="zstd")
    source = RowGroupSource.of_bytes(data)
    assert [group.rows for group in source.groups] == [100, 100, 100]
    metadata = pq.read_metadata(pa.BufferReader(data))
    assert [group.uncompressed_bytes for group in source.groups] == [
        metadata.row_group(index).total_byte_size for index in range(3)
    ]
    copy = pq.read_metadata(pa.BufferReader(all_of(source)))
    assert copy.num_rows == 300
    assert copy.row_group(0).column(0).compression == "ZSTD"
    assert copy.schema.equals(metadata.schema)
    assert copy.created_by.startswith("pyarctic version ")
    assert copy.format_version == metadata.format_version
    assert copy.row_group(2).column(0).has_offset_index
    assert copy.row_group(2).column(0).has_column_index


def test_a_copy_can_be_copied() -> None:
    data = written(rows(0, 200), row_group_size=50, write_page_index=True, bloom_filter_options={"name": {"ndv": 20}})
    once = all_of(RowGroupSource.of_bytes(data))
    twice = all_of(RowGroupSource.of_bytes(once))
    assert once == twice


def test_row_groups_are_pruned_by_statistics(tmp_path: Path) -> None:
    sources = [RowGroupSource.of_bytes(written(rows(start, 100), write_page_index=True)) for start in (0, 1000, 2000)]
    path = tmp_path / "copy.parquet"
    path.write_bytes(all_of(*sources))
    condition = pc.field("id") >= 1050
    (fragment,) = ds.dataset(path).get_fragments()
    assert [group.id for group in fragment.subset(condition).row_groups] == [1, 2]
    assert ds.dataset(path).to_table(filter=condition).num_rows == 150
    assert pl.scan_parquet(path).filter(pl.col("id") >= 1050).collect()["id"].to_list() == [
        *range(1050, 1100),
        *range(2000, 2100),
    ]
    same = pl.col("name") == "name-3"
    assert pl.scan_parquet(path).filter(same).collect().equals(pl.read_parquet(path).filter(same))


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "uncompressed"])
@pytest.mark.parametrize("nested", [True, False])
def test_files_of_polars(compression: Any, nested: bool) -> None:
    columns = SCHEMA.names if nested else ["id", "name", "ratio", "price", "flag"]
    files = []
    for start in (0, 400):
        sink = io.BytesIO()
        frame(rows(start, 400).select(columns)).write_parquet(
            sink, compression=compression, row_group_size=150, data_page_size=500
        )
        files.append(sink.getvalue())
    sources = [RowGroupSource.of_bytes(file) for file in files]
    copy = all_of(*sources[::-1])
    assert pl.read_parquet(copy).equals(pl.concat(pl.read_parquet(file) for file in files[::-1]))
    assert read(copy).num_rows == 800
    for index in range(len(sources[1].groups)):
        assert_same_group(files[1], index, copy, index)


def test_files_without_rows() -> None:
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, SCHEMA).close()
    without_groups = RowGroupSource.of_bytes(sink.getvalue())
    assert without_groups.groups == ()
    without_rows = RowGroupSource.of_bytes(written(rows(0, 0)))
    full = RowGroupSource.of_bytes(written(rows(0, 10)))
    assert without_groups.schema == without_rows.schema
    assert without_rows.schema == full.schema
    out = io.BytesIO()
    writer = RowGroupWriter(out)
    writer.append_all(without_groups)
    assert writer.close().num_row_groups == 0
    assert read(out.getvalue()).schema.equals(SCHEMA)
    copy = all_of(without_rows, full, without_rows)
    assert repr(read(copy).to_pylist()) == repr(rows(0, 10).to_pylist())
    assert [group.rows for group in without_rows.groups] == [0]
    assert pq.read_metadata(pa.BufferReader(copy)).num_row_groups == 1
    with pytest.raises(ValueError, match="has no columns"):
        RowGroupWriter(io.BytesIO()).close()


def test_more_groups_than_an_ordinal_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowgroups, "_MAX_ORDINAL", 2)
    source = RowGroupSource.of_bytes(written(pa.table({"x": [1]})))
    copy = copied(*[(source, 0)] * 20)
    assert read(copy).num_rows == pl.read_parquet(copy).height == 20


class Counting(io.BytesIO):
    """A stream that remembers what was asked of it, and gives little at a time."""

    def __init__(self, data: bytes, most: int = 1 << 30) -> None:
        super().__init__(data)
        self.reads: list[int] = []
        self.most = most

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        self.reads.append(size)
        return super().read(min(size, self.most))


def large(groups: int, **settings: Any) -> tuple[pa.Table, bytes]:
    table = pa.table({f"c{column}": pa.array(range(column, 60_000 + column)) for column in range(3)})
    shape = {"row_group_size": 60_000 // groups, "compression": "none", "use_dictionary": False}
    return table, written(table, **{**shape, **settings})


def test_a_small_file_takes_one_read_and_others_two() -> None:
    small, (_, data) = Counting(written(rows(0, 100), write_page_index=True)), large(4, write_page_index=True)
    for stream, reads in ((small, 1), (Counting(data), 2)):
        writer = RowGroupWriter(io.BytesIO())
        writer.append_all(RowGroupSource.open(stream, "there"))
        writer.close()
        assert len(stream.reads) == reads


def test_large_groups_are_copied_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquetsource, "_COPY_BYTES", 10_000)
    monkeypatch.setattr(parquetsource, "_TAIL_BYTES", 10_000)
    table, data = large(2)
    stream = Counting(data, most=999)
    assert read(all_of(RowGroupSource.open(stream, "there"))).equals(table)
    assert max(stream.reads) == 10_000


def test_a_footer_longer_than_the_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquetsource, "_TAIL_BYTES", 20)
    data = written(rows(0, 100), row_group_size=30, write_page_index=True, bloom_filter_options={"id": {"ndv": 9}})
    source = RowGroupSource.open(io.BytesIO(data), "there")
    assert all_of(source) == all_of(RowGroupSource.of_bytes(data))


def test_streams_of_pyiceberg(tmp_path: Path) -> None:
    files = PyArrowFileIO()
    table, data = large(3)
    (tmp_path / "old.parquet").write_bytes(data)
    with (
        files.new_input(str(tmp_path / "old.parquet")).open() as stream,
        files.new_output(str(tmp_path / "new.parquet")).create() as out,
    ):
        writer = RowGroupWriter(out)
        writer.append_all(RowGroupSource.open(stream, "old.parquet"))
        writer.close()
    assert pq.read_table(tmp_path / "new.parquet").equals(table)


# Columns beside


def lineage(start: int, count: int) -> RowGroupSource:
    ids = pa.array(range(start, start + count), pa.int64())
    return RowGroupSource.of_bytes(written(pa.table([ids, pa.array([7] * count, pa.int64())], schema=LINEAGE)))


@pytest.mark.parametrize("page_index", [True, False])
def test_columns_beside(page_index: bool) -> None:
    settings = {"row_group_size": 60, "write_page_index": page_index, "sorting_columns": [pq.SortingColumn(0)]}
    source = RowGroupSource.of_bytes(written(rows(0, 100), **settings))
    copy = copied((source, 1), (source, 0), beside=[lineage(500, 40), lineage(0, 60)])
    table = read(copy)
    assert table.schema.names == [*SCHEMA.names, *LINEAGE.names]
    assert table.schema.field("_row_id").metadata == {b"PARQUET:field_id": b"2147483540"}
    assert table["_row_id"].to_pylist() == [*range(500, 540), *range(60)]
    assert table["id"].to_pylist() == [*range(60, 100), *range(60)]
    assert pl.read_parquet(copy, columns=["_row_id"])["_row_id"].to_list() == [*range(500, 540), *range(60)]
    group = pq.read_metadata(pa.BufferReader(copy)).row_group(0)
    assert group.column(group.num_columns - 2).statistics.min == 500
    assert group.sorting_columns == (pq.SortingColumn(0),)
    chunks = [group.column(index) for index in range(group.num_columns)]
    assert group.total_byte_size == sum(chunk.total_uncompressed_size for chunk in chunks)


def test_a_copy_with_columns_beside_fits_its_like() -> None:
    source = RowGroupSource.of_bytes(written(rows(0, 10)))
    with_lineage = RowGroupSource.of_bytes(copied((source, 0), beside=[lineage(0, 10)]))
    assert with_lineage.schema.fields[-1] == ("_last_updated_sequence_number", 2147483539)
    assert with_lineage.schema.names[:2] == ("id", "name")
    sink = io.BytesIO()
    writer = RowGroupWriter(sink)
    writer.append(with_lineage, 0)
    writer.append(source, 0, lineage(10, 10))
    writer.close()
    assert read(sink.getvalue())["_row_id"].to_pylist() == [*range(20)]
    with pytest.raises(NotCopyable, match="'_last_updated_sequence_number' is there already"):
        writer.append(with_lineage, 0, lineage(0, 10))


def test_columns_beside_of_other_rows() -> None:
    source = RowGroupSource.of_bytes(written(rows(0, 10)))
    writer = RowGroupWriter(io.BytesIO())
    with pytest.raises(NotCopyable, match="row group 0 has 10 rows"):
        writer.append(source, 0, lineage(0, 9))
    assert writer.tell() == 4


# What fits together


def test_other_columns_are_refused_before_anything_is_written() -> None:
    source = RowGroupSource.of_bytes(written(rows(0, 10)))
    others = [
        rows(0, 10).drop_columns("flag"),
        rows(0, 10).rename_columns([*SCHEMA.names[:-1], "flags"]),
        rows(0, 10).cast(pa.schema([*list(SCHEMA)[:-1], SCHEMA.field("flag").with_metadata({"PARQUET:field_id": "12"})])),
        rows(0, 10).select(SCHEMA.names[::-1]),
    ]
    writer = RowGroupWriter(io.BytesIO())
    writer.append_all(source)
    before = writer.tell()
    for table in others:
        other = RowGroupSource.of_bytes(written(table))
        assert source.schema != other.schema
        with pytest.raises(NotCopyable, match="not those of the row groups before"):
            writer.append_all(other)
    with pytest.raises(NotCopyable, match="not those of the row groups before"):
        writer.append(source, 0, lineage(0, 10))
    assert (writer.tell(), writer.rows) == (before, 10)
    assert writer.close().num_row_groups == 1


def test_the_name_of_the_root_does_not_matter() -> None:
    data = written(rows(0, 10))
    assert data.count(b"\x06schema") == 1
    other = RowGroupSource.of_bytes(data.replace(b"\x06schema", b"\x06tables"))
    assert other.schema == RowGroupSource.of_bytes(data).schema


def test_key_values_that_all_sources_share_are_kept() -> None:
    def source(pairs: dict[str, str], *, stored: bool = False) -> RowGroupSource:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, SCHEMA, store_schema=stored) as writer:
            writer.write_table(rows(0, 10))
            writer.add_key_value_metadata(pairs)
        return RowGroupSource.of_bytes(sink.getvalue())

    own = {"org.apache.spark.sql.parquet.row.metadata": "{}", "pandas": "{}"}
    same, one, other = {"iceberg.schema": "{}", "kept": "yes"}, {"job": "1"}, {"job": "2"}
    sources = [source({**same, **one, **own}), source({**same, **other, **own}), source({**same, **one}, stored=True)]

    def kept(data: bytes) -> dict[bytes, bytes]:
        return pq.read_metadata(pa.BufferReader(data)).metadata or {}

    assert kept(all_of(sources[0])) == {b"iceberg.schema": b"{}", b"kept": b"yes", b"job": b"1"}
    assert kept(all_of(*sources)) == {b"iceberg.schema": b"{}", b"kept": b"yes"}
    assert kept(all_of(*sources, source({}))) == {}
    assert kept(copied((sources[0], 0), beside=[lineage(0, 10)])) == {b"kept": b"yes", b"job": b"1"}


# Layouts of other writers, made of ours

Fields = dict[int, tuple[int, bytes]]


def _spans(data: bytes, fields: dict[int, Span]) -> Fields:
    return {key: (kind, data[start:end]) for key, (kind, start, end) in fields.items()}


def _encoded(fields: Fields) -> bytes:
    return encode_fields((key, *fields[key]) for key in sorted(fields)) + b"\0"


def refooted(
    data: bytes, change: Callable[[Fields, Fields], None], group_change: Callable[[Fields], None] | None = None
) -> bytes:
    """The file with every ColumnChunk and ColumnMetaData changed, and perhaps the FileMetaData."""
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]

    def chunk(data: bytes, position: int) -> tuple[bytes, int]:
        spans, end = read_struct(data, position)
        fields, metadata = _spans(data, spans), _spans(data, read_struct(data, spans[3][1])[0])
        change(fields, metadata)
        if 3 in fields:
            fields[3] = (STRUCT, _encoded(metadata))
        return _encoded(fields), end

    def group(data: bytes, position: int) -> tuple[bytes, int]:
        spans, end = read_struct(data, position)
        chunks, _ = read_list(data, spans[1][1], chunk)
        return _encoded({**_spans(data, spans), 1: (spans[1][0], encode_list(chunks, len(chunks)))}), end

    spans, _ = read_struct(footer, 0)
    groups, _ = read_list(footer, spans[4][1], group)
    fields = {**_spans(footer, spans), 4: (spans[4][0], encode_list(groups, len(groups)))}
    if group_change:
        group_change(fields)
    footer = _encoded(fields)
    return data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _int(fields: Fields, key: int) -> int:
    kind, value = fields[key]
    return number(value, (kind, 0, len(value)))


def test_a_dictionary_that_is_not_told_or_told_as_zero() -> None:
    table = rows(0, 100)
    plain = written(table, use_dictionary=False)

    def zero(_: Fields, metadata: Fields) -> None:
        metadata[11] = (I64, encode_number(0))

    copy = all_of(RowGroupSource.of_bytes(written(table)), RowGroupSource.of_bytes(refooted(plain, zero)))
    assert repr(read(copy).to_pylist()) == repr(pa.concat_tables([table, table]).to_pylist())


def test_the_place_of_a_chunk_is_told_in_many_ways() -> None:
    data = written(rows(0, 100), row_group_size=50)

    def of_parquet_java(fields: Fields, metadata: Fields) -> None:
        fields[2] = (I64, encode_number(_int(metadata, 9)))

    def of_old_arrow(fields: Fields, metadata: Fields) -> None:
        start = min(_int(metadata, key) for key in (9, 11) if key in metadata)
        fields[2] = (I64, encode_number(start + _int(metadata, 7)))

    def offsets(change: Callable[[Fields, Fields], None]) -> list[tuple[int, int]]:
        copy = copied((RowGroupSource.of_bytes(refooted(data, change)), 1))
        group = pq.read_metadata(pa.BufferReader(copy)).row_group(0)
        chunks = [group.column(index) for index in range(group.num_columns)]
        return [(chunk.file_offset, chunk.data_page_offset) for chunk in chunks]

    assert all(told == page for told, page in offsets(of_parquet_java))
    assert all(told == 0 for told, _ in offsets(of_old_arrow))


def test_chunks_with_gaps_and_out_of_order() -> None:
    table = rows(0, 100)
    data = written(table, write_page_index=False)
    gap = b"x" * 100
    body, moves = bytearray(b"PAR1"), {}
    for chunk in reversed(RowGroupSource.of_bytes(data).groups[0].chunks):
        body += gap
        moves[chunk.start] = len(body) - chunk.start
        body += data[chunk.start : chunk.end]

    def move(_: Fields, metadata: Fields) -> None:
        places = {key: _int(metadata, key) for key in (9, 11) if key in metadata}
        by = moves[min(places.values())]
        metadata.update({key: (I64, encode_number(place + by)) for key, place in places.items()})

    changed = refooted(data, move)
    (length,) = struct.unpack("<I", changed[-8:-4])
    strange = bytes(body) + changed[-8 - length :]
    assert repr(read(strange).to_pylist()) == repr(table.to_pylist())
    stream = Counting(strange + b"")
    source = RowGroupSource.open(stream, "there")
    copy = all_of(source)
    assert repr(read(copy).to_pylist()) == repr(table.to_pylist())
    assert gap not in copy
    assert len(stream.reads) == 1


def test_bloom_filters_of_unknown_size() -> None:
    data = written(rows(0, 100), row_group_size=50, bloom_filter_options={"id": {"ndv": 50}, "name": {"ndv": 10}})

    def forget(_: Fields, metadata: Fields) -> None:
        metadata.pop(15, None)

    copy = all_of(RowGroupSource.of_bytes(data))
    forgotten = all_of(RowGroupSource.of_bytes(refooted(data, forget)))
    size = [struct.unpack("<I", file[-8:-4])[0] for file in (copy, forgotten)]
    assert copy[: -8 - size[0]] == forgotten[: -8 - size[1]]
    assert refooted(copy, forget) == forgotten


# Refusals


def _field(key: int, value: bytes, kind: int = BINARY) -> Callable[[Fields, Fields], None]:
    def change(fields: Fields, _: Fields) -> None:
        fields[key] = (kind, value)

    return change


def _nothing(_: Fields, __: Fields) -> None:
    pass


def test_what_cannot_be_copied() -> None:
    data = written(rows(0, 10))

    def without_metadata(fields: Fields, _: Fields) -> None:
        del fields[3]

    def of_a_later_version(_: Fields, metadata: Fields) -> None:
        metadata[18] = (I64, encode_number(4))

    def encrypted(fields: Fields) -> None:
        fields[8] = (STRUCT, b"\0")

    refused = [
        (refooted(data, _field(1, encode_binary(b"part-1.parquet"))), "columns in other files"),
        (refooted(data, _field(8, b"\0", STRUCT)), "is encrypted"),
        (refooted(data, without_metadata), "outside of its footer"),
        (refooted(data, of_a_later_version), "unknown to PyArctic"),
        (refooted(data, _nothing, encrypted), "is encrypted"),
        (data[:-4] + b"PARE", "footer is encrypted"),
    ]
    for file, message in refused:
        with pytest.raises(NotCopyable, match=f"^there: .*{message}"):
            RowGroupSource.open(io.BytesIO(file), "there")


@pytest.mark.parametrize(
    ("created_by", "sound"),
    [
        (b"parquet-mr version 1.7.0 (build abc)", False),
        (b"parquet-mr", False),
        (b"parquet-cpp version 1.5.1-SNAPSHOT", False),
        (b"", False),
        (b"parquet-mr version 1.8.0 (build abc)", True),
        (b"parquet-mr version 1.16.0 (build abc)", True),
        (b"parquet-cpp-arrow version 1.0.0", True),
        (b"parquet-mr-like version 1.0.0", True),
        (b"DuckDB version v1.4.0 (build 1)", True),
    ],
)
def test_writers_whose_files_readers_treat_by_name(created_by: bytes, sound: bool) -> None:
    def sign(fields: Fields) -> None:
        fields[6] = (BINARY, encode_binary(created_by))

    file = refooted(written(rows(0, 10)), _nothing, sign)
    if sound:
        assert read(all_of(RowGroupSource.of_bytes(file))).num_rows == 10
    else:
        with pytest.raises(NotCopyable, match="treat by its name"):
            RowGroupSource.of_bytes(file)


def test_a_size_that_contradicts_the_page_index() -> None:
    def smaller(_: Fields, metadata: Fields) -> None:
        metadata[7] = (I64, encode_number(_int(metadata, 7) - 1))

    source = RowGroupSource.of_bytes(refooted(written(rows(0, 10), write_page_index=True), smaller), "there")
    writer = RowGroupWriter(io.BytesIO())
    with pytest.raises(NotCopyable, match=r"^there: a page lies outside of its column"):
        writer.append_all(source)
    assert writer.tell() == 4


# Damage


def test_files_that_are_cut_or_no_parquet() -> None:
    data = written(rows(0, 100), write_page_index=True)
    (length,) = struct.unpack("<I", data[-8:-4])
    broken = [
        b"",
        b"PAR1",
        b"PAR1PAR1",
        data[:-1],
        data[: len(data) // 2],
        b"text " * 100,
        data[:-8] + struct.pack("<I", 1 << 31) + b"PAR1",
        data[: -8 - length // 2] + data[-8:],
        data[: -8 - length] + b"\x19" * length + data[-8:],
        data[: -8 - length] + b"\x1c" * 3000 + struct.pack("<I", 3000) + b"PAR1",
        data[-8 - length :],
    ]
    for file in broken:
        with pytest.raises(Damaged, match="file cannot be read: there"):
            RowGroupSource.open(io.BytesIO(file), "there")
        with pytest.raises(Damaged, match="file cannot be read: a file in memory"):
            RowGroupSource.of_bytes(file)


@settings(max_examples=400)
@given(st.data())
def test_damaged_footers_are_told(data: st.DataObject) -> None:
    file = bytearray(DAMAGE)
    (length,) = struct.unpack("<I", file[-8:-4])
    for _ in range(data.draw(st.integers(1, 3))):
        file[data.draw(st.integers(len(file) - 8 - length, len(file) - 9))] = data.draw(st.integers(0, 255))
    try:
        source = RowGroupSource.of_bytes(bytes(file))
        RowGroupWriter(io.BytesIO()).append_all(source)
    except (Damaged, NotCopyable):
        pass


DAMAGE = written(
    rows(0, 60), row_group_size=30, write_page_index=True, bloom_filter_options={"id": {"ndv": 9}}, compression="zstd"
)


def test_a_file_that_shrinks_while_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquetsource, "_TAIL_BYTES", 4000)
    _, data = large(1)
    stream = io.BytesIO(data)
    source = RowGroupSource.open(stream, "there")
    stream.truncate(100_000)
    writer = RowGroupWriter(io.BytesIO())
    with pytest.raises(Damaged, match=r"it ends .* bytes too early"):
        writer.append_all(source)
    with pytest.raises(ValueError, match="copied in part"):
        writer.close()


def test_a_store_that_fails() -> None:
    class Failing(io.BytesIO):
        def read(self, _: int | None = -1, /) -> bytes:
            raise OSError(5, "broken")

    with pytest.raises(Unavailable, match="reading there failed"):
        RowGroupSource.open(Failing(DAMAGE), "there")
