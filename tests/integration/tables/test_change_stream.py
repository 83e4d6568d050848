"""Streams of changes: whatever is written meanwhile and however little is read at a time, every change comes once.

`HISTORIES=500 pytest tests/unit/tables/test_changestream.py` tries more random histories.
"""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, note, settings
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic import config
from pyarctic.errors import NotFound, Rejected, UsageError
from pyarctic.iceberg.commit import Change
from pyarctic.tables import KeyedTable
from pyarctic.tables.format.change_columns import FILE_OFFSET
from pyarctic.tables.read.change_stream import ChangeStream, ReadLimits, StreamPosition
from pyarctic.tables.read.latest_versions import MAX_OFFSET
from pyarctic.tables.write.arrow_rows import fit_to_schema
from pyarctic.tables.write.fanout import Fanout
from tests.models.key_versions import Place, Row
from tests.models.keyed_table import KeyedModel

HISTORIES = int(os.environ.get("HISTORIES", "6"))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[int]]:
    folder = tmp_path_factory.mktemp("lake")
    pyarctic.catalog("streams", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    yield count(1)
    config.reset()


def read(stream: ChangeStream, start: StreamPosition, end: StreamPosition) -> list[Row]:
    """The rows between two positions; their readers have been somewhere else."""
    portions = pickle.loads(pickle.dumps(stream.splits(start, end)))
    return [row for reader, portion in portions for batch in reader.batches(portion) for row in batch.to_pylist()]


def kept(position: StreamPosition) -> StreamPosition:
    """As a checkpoint keeps it."""
    return StreamPosition.from_json(json.loads(json.dumps(position.to_json())))


@dataclass
class Follower:
    """Reads a table as a stream, a step at a time, and knows what it has to get."""

    model: KeyedModel
    origin: str
    at: StreamPosition = field(init=False)
    due_base: Counter[str] = field(init=False)
    """Rows of Base that were not delivered yet."""
    due: list[tuple[int, Row]] = field(init=False)
    """Changes that were not delivered yet, with the sequence number of their commit."""
    got: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        table = self.model.opened()
        self.at = ChangeStream(table).beginning(self.origin)
        self.due, self.due_base = [], Counter()
        self.largest_base = 0
        if self.origin == "earliest":
            begun = {"_transaction_id": 0, "_file_offset": MAX_OFFSET, "_change_action": "INSERT"}
            self.due_base = Counter(repr(row | begun) for row in table.scan(store="base").to_arrow().to_pylist())
            self.largest_base = table.files(content="data")["record_count"].max() or 0  # type: ignore[assignment]
            merged, known = self.model.base.merged, changes_by_commit(table)
            for sequence, rows in known.items():
                places = self.model.places(rows)
                self.due += [
                    (sequence, row)
                    for (partition, _), row in zip(places, rows, strict=True)
                    if sequence > merged.get(partition, 0)
                ]
        elif self.origin != "latest":
            begin = next(c.sequence for c in self.model.commits if c.snapshot_id == int(self.origin))
            for sequence, rows in changes_by_commit(table).items():
                self.due += [(sequence, row) for row in rows if sequence > begin]

    def wrote(self, before: int) -> None:
        """Something was committed after a sequence number."""
        for sequence, rows in changes_by_commit(self.model.opened()).items():
            if sequence > before:
                self.due += [(sequence, row) for row in rows]

    def step(self, limits: ReadLimits) -> bool:
        """Read on; False if there is nothing."""
        start = self.at = kept(self.at)
        end = ChangeStream(self.model.opened(), limits=limits).following(start)
        if end == start:
            return False
        # Whoever reads has a table of its own, and may do it twice.
        rows = read(ChangeStream(self.model.opened(), limits=limits), start, kept(end))
        assert rows == read(ChangeStream(self.model.opened()), start, kept(end))
        self._take(rows, limits)
        self.at = end
        return True

    def _take(self, rows: list[Row], limits: ReadLimits) -> None:
        base = [row for row in rows if row["_file_offset"] == MAX_OFFSET]
        changes = rows[len(base) :]
        told = Counter(repr(row | {"_transaction_id": 0}) for row in base)
        assert told <= self.due_base
        self.due_base -= told
        assert not (changes and self.due_base.total()), "changes came before all of Base was read"
        expected, self.due = self.due[: len(changes)], self.due[len(changes) :]
        wanted = [row for _, row in expected]
        # Which of two files of another engine comes first is not said.
        assert [*map(order_of, changes)] == [*map(order_of, wanted)]
        assert Counter(map(repr, changes)) == Counter(map(repr, wanted))
        sequences = {sequence for sequence, _ in expected}
        assert not sequences & {sequence for sequence, _ in self.due}, "a commit was divided"
        if limits.rows is not None and len(rows) > limits.rows:
            assert (not base and len(sequences) == 1) or (not changes and len(base) <= self.largest_base)
        self.got += rows

    def finish(self, limits: ReadLimits) -> None:
        while self.step(limits):
            pass
        assert not self.due
        assert not self.due_base.total()

    def replayed(self) -> dict[Place, Row]:
        """The rows that are left when everything that came is done in order."""
        rows: dict[Place, Row] = {}
        tags = {name: tag for tag, name in self.model.columns.items()}
        order = sorted(self.got, key=order_of)
        plain = [{tags[name]: value for name, value in row.items() if name in tags} for row in order]
        for place, row, said in zip(self.model.places(plain), plain, order, strict=True):
            rows.pop(place, None)
            if order_of(said)[-1]:
                rows[place] = row
        return rows


def order_of(row: Row) -> tuple[int, int, bool]:
    return row["_transaction_id"], row["_file_offset"], row["_change_action"] in ("INSERT", "UPDATE_AFTER")


def changes_by_commit(table: KeyedTable) -> dict[int, list[Row]]:
    """All changes in order, by the sequence number of their commit. Nobody committed with an older transaction."""
    found: dict[int, list[Row]] = {}
    for row in table.changes().to_arrow().to_pylist():
        found.setdefault(row["_transaction_id"], []).append(row)
    assert sorted(found) == [*found]
    return found


def head(model: KeyedModel) -> int:
    snapshot = model.opened().change_store.view.metadata.current_snapshot()
    return (snapshot.sequence_number or 0) if snapshot else 0


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=HISTORIES, phases=[Phase.generate])
def test_every_change_comes_once_and_in_order(numbers: Iterator[int], seed: int) -> None:
    random = Random(f"stream {seed}")
    model = KeyedModel(f"streams.n.t{next(numbers)}", random)
    try:
        follow(model)
    finally:
        note("\n".join(model.log))


def follow(model: KeyedModel) -> None:
    random = model.random
    writes: list[Callable[[], None]] = [model.insert, model.upsert, model.delete, model.cdc, model.change_buckets]
    writes.append(model.rewrite_manifests)
    loads: list[Callable[[], None]] = [model.overwrite, model.foreign_base]
    if random.random() < 0.3:
        writes.append(model.foreign_change)
    for _ in range(random.randint(0, 5)):
        random.choice(writes + loads[:1])()
    origins = ["earliest", "earliest", "latest", *(str(commit.snapshot_id) for commit in model.commits[-2:])]
    follower = Follower(model, random.choice(origins))
    is_replayable = follower.origin == "earliest"
    model.log.append(f"a stream begins: {follower.at}")
    may_load = random.random() < 0.5
    for _ in range(random.randint(2, 6)):
        limits = ReadLimits(rows=random.choice([None, 1, 4, 9]), files=random.choice([None, None, 1, 3]))
        if random.random() < 0.5:
            before = head(model)
            step = random.choice(writes + (loads if may_load else []))
            step()
            is_replayable &= step not in loads
            follower.wrote(before)
        else:
            model.log.append(f"{limits}: {follower.step(limits)}, {follower.at}")
    follower.finish(limits)
    if is_replayable:
        expected = {place: {tag: row.get(tag) for tag in model.columns} for place, row in model.expected().items()}
        assert follower.replayed() == expected


SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string(), "text": pa.string()})


@pytest.fixture
def table(lake: Catalog) -> KeyedTable:
    created = pyarctic.create_table("lake.n.t", SCHEMA, ["id", "part"], ["part"])
    assert isinstance(created, KeyedTable)
    return created


def rows(part: str, **texts: str) -> pa.Table:
    """`rows("x", _1="a")`"""
    found = [{"id": int(name[1:]), "part": part, "text": text} for name, text in texts.items()]
    return pa.Table.from_pylist(found, schema=SCHEMA)


def told(found: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["_change_action"], row["id"], row["text"]) for row in found]


def remove_changes(table: KeyedTable, upto: int) -> None:
    """As somebody does who has merged them."""
    store = table.refresh().change_store
    old = store.file_list.frame().filter(pl.col("data_sequence_number") <= upto)
    assert old.height
    store.commit(Change(start=store.view.snapshot_id, remove=old))


def test_partitions_merged_to_different_ends(table: KeyedTable) -> None:
    table.write(rows("x", _1="hidden"))
    table.write(rows("y", _2="pending"))
    table.write(rows("x", _3="base"), "overwrite", replace="partitions")
    table.write(rows("x", _4="new"))
    stream = ChangeStream(table)
    start = stream.beginning("earliest")
    end = stream.following(start)
    found = read(stream, start, end)
    assert told(found) == [("INSERT", 3, "base"), ("INSERT", 2, "pending"), ("INSERT", 4, "new")]
    assert stream.following(end) == end
    # The rows of Base belong to the snapshot at which the stream began, whatever happens to it.
    table.write(rows("x", _5="replaced"), "overwrite")
    assert read(ChangeStream(table.refresh()), start, end) == found
    assert read(ChangeStream(table), end, ChangeStream(table).following(end)) == []


def test_what_was_read_may_be_removed(table: KeyedTable) -> None:
    table.write(rows("x", _1="a"))
    at = ChangeStream(table).following(ChangeStream(table).beginning("earliest"))
    table.write(rows("x", _1="merged"), "overwrite")
    table.write(rows("x", _2="b"))
    remove_changes(table, upto=1)
    stream = ChangeStream(table.refresh())
    assert told(read(stream, at, stream.following(at))) == [("INSERT", 2, "b")]
    # Who begins now reads Base instead.
    start = stream.beginning("earliest")
    assert told(read(stream, start, stream.following(start))) == [("INSERT", 1, "merged"), ("INSERT", 2, "b")]


@pytest.mark.parametrize("has_base", [True, False])
def test_what_was_not_read_and_is_gone_is_noticed(table: KeyedTable, has_base: bool) -> None:
    if has_base:
        table.write(rows("x", _9="base"), "overwrite")
    table.write(rows("y", _1="a"))
    table.write(rows("y", _2="b"))
    first = table.change_store.view.metadata.snapshots[-2]
    starts = [ChangeStream(table).beginning("earliest")]
    starts.append(ChangeStream(table, limits=ReadLimits(files=1)).following(starts[0]))
    parent = first.parent_snapshot_id
    starts += [ChangeStream(table).beginning(str(parent))] if parent else []
    planned = [(start, ChangeStream(table).following(start)) for start in starts[:1]]
    remove_changes(table, upto=first.sequence_number or 0)
    table.write(rows("y", _3="c"))
    stream = ChangeStream(table.refresh())
    for start in starts if has_base else [starts[0]]:
        with pytest.raises(NotFound, match=r"rows .*gone") as refusal:
            stream.following(start)
        assert "fail-on-gaps=false" in (refusal.value.hint or "")
        careless = ChangeStream(table, limits=ReadLimits(fail_on_gaps=False))
        found = read(careless, start, careless.following(start))
        assert told(found)[-2:] == [("INSERT", 2, "b"), ("INSERT", 3, "c")]
    # Begun, planned, and then lost before it was read.
    for start, end in planned:
        with pytest.raises(NotFound, match="gone"):
            read(stream, start, end)


def test_a_planned_batch_whose_changes_are_gone_is_noticed(table: KeyedTable) -> None:
    table.write(rows("y", _1="a"))
    start = ChangeStream(table).beginning("latest")
    table.write(rows("y", _2="b"))
    end = ChangeStream(table).following(start)
    remove_changes(table, upto=2)
    with pytest.raises(NotFound, match="gone"):
        ChangeStream(table.refresh()).splits(start, end)
    assert ChangeStream(table, limits=ReadLimits(fail_on_gaps=False)).splits(start, end) == []


def test_expired_snapshots_are_a_gap_only_for_who_is_behind(table: KeyedTable, lake: Catalog) -> None:
    positions = []
    for number in range(1, 4):
        table.write(rows("x", **{f"_{number}": "a"}))
        positions.append(ChangeStream(table).beginning("latest"))
    store = table.change_store
    old = [snapshot.snapshot_id for snapshot in store.view.metadata.snapshots[:2]]
    lake.load_table(store.name.removeprefix("lake.")).maintenance.expire_snapshots().by_ids(old).commit()
    stream = ChangeStream(table.refresh())
    with pytest.raises(NotFound, match="expired"):
        stream.following(positions[0])
    # Of the second commit nothing is missing: the third says all that came after it.
    assert told(read(stream, positions[1], stream.following(positions[1]))) == [("INSERT", 3, "a")]
    assert stream.following(positions[2]) == positions[2]


def test_base_that_is_expired_while_it_is_read_is_noticed(table: KeyedTable, lake: Catalog) -> None:
    for part in ("x", "y"):
        table.write(rows(part, _1="a"), "overwrite", where=f"part = '{part}'")
    stream = ChangeStream(table, limits=ReadLimits(files=1))
    start = stream.beginning("earliest")
    middle = stream.following(start)
    assert len(read(stream, start, middle)) == 1
    old = table.view.snapshot_id
    table.write(rows("x", _2="b"), "overwrite")
    lake.load_table("n.t").maintenance.expire_snapshots().by_id(old or 0).commit()
    with pytest.raises(NotFound, match="was expired"):
        ChangeStream(table.refresh()).following(middle)


def test_columns_and_schemas(table: KeyedTable) -> None:
    table.write(rows("x", _1="base"), "overwrite")
    table.write(rows("x", _1="a"), "upsert")
    table.evolve(add={"more": "long"})
    table.write(rows("x", _2="b").append_column("more", pa.array([7])))
    stream = ChangeStream(table.refresh(), ["_change_action", "more", "text"])
    assert stream.schema.names == ["_change_action", "more", "text"]
    start = stream.beginning("earliest")
    found = read(stream, start, stream.following(start))
    assert [tuple(row.values()) for row in found] == [
        ("INSERT", None, "base"),
        ("DELETE", None, "a"),
        ("INSERT", None, "a"),
        ("INSERT", 7, "b"),
    ]
    actions = ChangeStream(table, ["_change_action"])
    assert [row["_change_action"] for row in read(actions, start, actions.following(start))] == [
        "INSERT",
        "DELETE",
        "INSERT",
        "INSERT",
    ]


def test_an_empty_table(table: KeyedTable) -> None:
    stream = ChangeStream(table)
    for origin in ("earliest", "latest"):
        start = kept(stream.beginning(origin))
        assert read(stream, start, stream.following(start)) == []
        table.write(rows("x", _1=origin))
        stream = ChangeStream(table.refresh())
        assert told(read(stream, start, stream.following(start))) == [("INSERT", 1, origin)]


def test_wrong_beginnings(table: KeyedTable) -> None:
    with pytest.raises(UsageError, match="cannot begin at 'soon'"):
        ChangeStream(table).beginning("soon")
    with pytest.raises(NotFound):
        ChangeStream(table).beginning("12345")
    at = ChangeStream(table).beginning("latest")
    pyarctic.drop_table("lake.n.t")
    again = pyarctic.create_table("lake.n.t", SCHEMA, ["id", "part"], ["part"])
    assert isinstance(again, KeyedTable)
    for ask in (ChangeStream(again).following, lambda position: ChangeStream(again).splits(position, position)):
        with pytest.raises(Rejected, match="another table"):
            ask(at)


def test_a_first_batch_that_is_read_again_begins_where_it_began(table: KeyedTable) -> None:
    """Whoever reads it again may be told to begin with another Base: changes that came later are in it already."""
    table.write(rows("x", _1="a"))
    stream = ChangeStream(table.refresh())
    start = stream.beginning("earliest")
    end = kept(stream.first(start))
    assert end.begun == start
    table.write(rows("x", _2="b"))
    table.write(rows("x", _1="a", _2="b"), "overwrite")
    stream = ChangeStream(table.refresh())
    another = stream.beginning("earliest")
    assert another != start
    assert told(read(stream, another, end)) == [("INSERT", 1, "a")]
    following = stream.following(end)
    assert following.begun is None
    assert told(read(stream, end, following)) == [("INSERT", 2, "b")]


def test_base_rows_come_after_the_changes_that_they_hide(table: KeyedTable) -> None:
    """A transaction that was begun before an overwrite and is committed after it: the overwrite has the last word."""
    begun = table._begin()
    table.write(rows("x", _1="base"), "overwrite")
    view = table.refresh().change_store.view
    with Fanout(view, mask=0, transaction_id=begun, extra_fields=(FILE_OFFSET,)) as out:
        late = fit_to_schema(rows("x", _1="late").to_batches()[0], view.metadata.schema())
        out.write(late, out.locate(late), {"I": pa.array([1])})
    table.change_store.commit(Change(start=view.snapshot_id, add=tuple(out.files)))
    table.refresh()
    [merged] = table.scan().to_arrow().to_pylist()
    stream = ChangeStream(table)
    start = stream.beginning("earliest")
    found = read(stream, start, stream.following(start))
    last = max(found, key=lambda row: (row["_transaction_id"], row["_file_offset"]))
    assert len(found) == 2
    assert last["text"] == merged["text"] == "base"
