"""Merging sorted streams: every row once and in order, within bounded memory, also if there are more than can be open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from pyarctic.tables.read import merge_sorted as module
from pyarctic.tables.read.merge_sorted import merge_sorted

ORDER = ("offset", "writer")
Streams = list[list[list[int]]]


def batches(writer: int, parts: list[list[int]]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield pa.record_batch({"offset": pa.array(part, pa.int64()), "writer": pa.array([writer] * len(part), pa.int32())})


@st.composite
def streams_of(draw: st.DrawFn) -> Streams:
    streams = []
    for _ in range(draw(st.integers(0, 9))):
        offsets = sorted(draw(st.sets(st.integers(0, 60), max_size=30)))
        cuts = sorted(draw(st.lists(st.integers(0, len(offsets)), max_size=4)))
        streams.append([offsets[start:end] for start, end in zip([0, *cuts], [*cuts, len(offsets)], strict=True)])
    return streams


@given(streams=streams_of(), max_open=st.integers(2, 10), memory=st.sampled_from([1, 100, 1 << 20]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_rows_are_complete_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: Streams, max_open: int, memory: int
) -> None:
    monkeypatch.setenv("ARCTIC_SPILL_DIR", str(tmp_path))
    monkeypatch.setattr(module, "MAX_OPEN", max_open)
    merged = merge_sorted([batches(number, parts) for number, parts in enumerate(streams)], ORDER, memory)
    found = [tuple(row.values()) for batch in merged for row in batch.to_pylist()]
    expected = [(offset, number) for number, parts in enumerate(streams) for part in parts for offset in part]
    assert found == sorted(expected)
    assert not [*tmp_path.iterdir()]


def test_few_rows_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten streams of a hundred batches: never more than the memory and a batch of each is read ahead."""
    read = [0]

    def counted(writer: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, 100_000, 1_000):
            read[0] += 1_000
            yield from batches(writer, [np.arange(start, start + 1_000).tolist()])

    given_out = ahead = 0
    for batch in merge_sorted([counted(writer) for writer in range(10)], ORDER, 200_000):
        ahead = max(ahead, read[0] - given_out)
        given_out += batch.num_rows
    assert given_out == 1_000_000
    assert ahead <= 200_000 // 12 + 10 * 1_000 + 1_000
