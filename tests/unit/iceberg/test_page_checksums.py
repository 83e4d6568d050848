"""Pages that are not decoded, compared with their checksums."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyarctic.errors import Damaged
from pyarctic.iceberg.write.parquet import RowGroupSource, RowGroupWriter, check_pages
from pyarctic.iceberg.write.parquet import row_group_source as sources
from pyarctic.iceberg.write.parquet.page_checksums import PageChecker
from tests.support.parquet_pages import pages

ROWS = pa.table(
    {
        "id": pa.array(range(500), pa.int64()),
        "name": [None if number % 5 == 0 else f"name-{number % 17}" for number in range(500)],
        "place": [{"x": number, "tags": ["t"] * (number % 3)} for number in range(500)],
    }
)
SETTINGS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "use_dictionary": st.booleans(),
        "row_group_size": st.sampled_from([60, 500]),
        "data_page_size": st.sampled_from([100, 1 << 20]),
        "write_batch_size": st.sampled_from([7, 1024]),
        "write_statistics": st.booleans(),
        "bloom_filter_options": st.sampled_from([None, {"id": {"ndv": 500}}]),
    }
)


def written(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(ROWS, sink, store_schema=False, **{"write_page_checksum": True, **options})
    return bytes(sink.getvalue())


def copied(data: bytes) -> bytes:
    sink = io.BytesIO()
    writer = RowGroupWriter(sink)
    writer.append_all(RowGroupSource.open(io.BytesIO(data), "there"))
    writer.close()
    return sink.getvalue()


@settings(max_examples=60)
@given(st.data(), SETTINGS, st.sampled_from([3, 50, 1000, 1 << 20]))
def test_any_changed_byte_of_any_page_is_noticed(data: st.DataObject, options: dict[str, Any], piece: int) -> None:
    """Whatever the pieces are that bytes arrive in."""
    file = written(**options)
    begin, end, has_checksum = data.draw(st.sampled_from([page for page in pages(file) if page[1] > page[0]]))
    assert has_checksum
    broken = bytearray(file)
    broken[data.draw(st.integers(begin, end - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_COPY_BYTES", piece)
        patch.setattr(sources, "_TAIL_BYTES", 100)
        assert pq.read_table(pa.BufferReader(copied(file))).equals(ROWS)
        for reads in (copied, lambda content: check_pages(RowGroupSource.open(io.BytesIO(content), "there"))):
            with pytest.raises(Damaged, match="a page does not match its checksum") as caught:
                reads(bytes(broken))
    metadata = pq.read_metadata(pa.BufferReader(file))
    column = caught.value.facts["column"]
    group = metadata.row_group(caught.value.facts["row_group"])
    chunk = next(group.column(index) for index in range(group.num_columns) if group.column(index).path_in_schema == column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    assert start < begin < start + chunk.total_compressed_size
    assert caught.value.facts["file"] == "there"


def test_pages_without_checksums_pass() -> None:
    file = written(write_page_checksum=False, compression="none", use_dictionary=False)
    begin, *_ = next(pages(file))
    broken = bytearray(file)
    broken[begin + 20] ^= 1
    assert not pq.read_table(pa.BufferReader(copied(bytes(broken)))).equals(ROWS)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("excess", [-1, 1])
def test_pages_that_do_not_fill_their_column(checksums: bool, excess: int) -> None:
    file = written(write_page_checksum=checksums, compression="none")
    source = RowGroupSource.of_bytes(file, "there")
    chunk = source.groups[0].chunks[0]
    end = chunk.end + excess
    with pytest.raises(Damaged, match="there"):
        PageChecker(source, [((chunk.start, end), chunk)]).add(file[chunk.start : end])
