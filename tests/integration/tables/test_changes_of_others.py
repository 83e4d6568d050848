"""Changes in files as the format's other writers, Flink and Spark, make them, committed by PyIceberg and merged by us."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

import pyarctic
from pyarctic.errors import Damaged
from pyarctic.tables import Table

# Keys and their nodes of four: the hash of an int is 31 more than it.
NODE = {1: 4, 2: 5, 3: 6, 4: 7, 5: 4, 6: 5, 7: 6, 8: 7}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False, metadata={"PARQUET:field_id": "1"}),
        pa.field("v", pa.string(), metadata={"PARQUET:field_id": "2"}),
        pa.field("_file_offset", pa.int64(), metadata={"PARQUET:field_id": "2147482645"}),
    ]
)
Change = tuple[int, str, int]
"""Key, value and offset."""


class Store:
    """The change store as another engine sees it."""

    def __init__(self, lake: Catalog) -> None:
        self._lake = lake
        self._numbers = count(1)

    def begin(self) -> int:
        """Begin a transaction as Spark does."""
        table = self._lake.load_table("db.t_change_")
        with table.transaction() as work, work.update_snapshot({"tx.begin.signature": ""}).fast_append():
            pass
        return self._sequence()

    def file(
        self, kind: str, changes: Sequence[Change], *, txid: int = 0, task: int = 0, operation: int = 77, node: int = 0
    ) -> Mapping[str, list[Change]]:
        """Changes of one kind and writer, one file for each node: by name."""
        files: dict[str, list[Change]] = {}
        for own in sorted({node or NODE[change[0]] for change in changes}):
            name = f"{own}-{kind}-{txid}-00000-{task}-{operation}-{next(self._numbers):05d}.parquet"
            files[name] = [change for change in changes if own in (node, NODE[change[0]])]
        return files

    def commit(self, *files: Mapping[str, list[Change]]) -> int:
        """One append; gives its sequence number."""
        table = self._lake.load_table("db.t_change_")
        with table.transaction() as work, work.update_snapshot().fast_append() as append:
            for name, changes in (item for each in files for item in each.items()):
                append.append_data_file(self._written(table.location(), name, changes))
        return self._sequence()

    def _written(self, location: str, name: str, changes: list[Change]) -> DataFile:
        rows = [dict(zip(SCHEMA.names, change, strict=True)) for change in changes]
        # What knows nothing of the format has no offsets.
        schema = SCHEMA if name[0].isdigit() else SCHEMA.remove(2)
        path = f"{location.removeprefix('file://')}/data/{name}"
        with pa.fs.LocalFileSystem().open_output_stream(_made(path)) as out:
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), out)
            size = out.tell()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(changes),
            file_size_in_bytes=size,
        )

    def _sequence(self) -> int:
        snapshot = self._lake.load_table("db.t_change_").current_snapshot()
        assert snapshot is not None
        return snapshot.sequence_number or 0


def _made(path: str) -> str:
    pa.fs.LocalFileSystem().create_dir(path.rpartition("/")[0])
    return path


@pytest.fixture
def table(lake: Catalog) -> Table:
    """Keys 1 to 4 in Base."""
    made = pyarctic.create_table("lake.db.t", SCHEMA.remove(2).remove_metadata(), primary_key=["id"])
    made.write(_rows(dict.fromkeys((1, 2, 3, 4), "base")), mode="overwrite")
    return made


@pytest.fixture
def store(lake: Catalog) -> Store:
    return Store(lake)


def _rows(values: Mapping[int, str]) -> pa.Table:
    return pa.table([pa.array([*values], pa.int32()), pa.array([*values.values()])], names=["id", "v"])


def read(table: Table, **options: Any) -> dict[int, str]:
    """The merged rows, whether their keys are held in memory or spilled."""
    scan = table.refresh().scan(**options)
    found = sorted((row["id"], row["v"]) for row in scan.to_arrow().to_pylist())
    assert len(found) == len(dict(found)) == scan.count()
    return dict(found)


def actions(table: Table) -> list[str]:
    names = ("_transaction_id", "_file_offset", "_change_action", "id")
    return [" ".join(str(row[name]) for name in names) for row in table.refresh().changes().to_arrow().to_pylist()]


def test_flink(table: Table, store: Store) -> None:
    """Transaction 0, subtasks with counters of their own, one commit for each checkpoint."""
    store.commit(
        store.file("ED", [(1, "base", 1), (2, "base", 2)], task=0, operation=1),
        store.file("I", [(1, "one", 1), (5, "five", 3)], task=0, operation=1),
        store.file("ED", [(3, "base", 1)], task=1, operation=2),
        store.file("I", [(7, "seven", 2)], task=1, operation=2),
    )
    assert read(table) == {1: "one", 4: "base", 5: "five", 7: "seven"}
    store.commit(
        store.file("ED", [(5, "five", 1), (5, "gone", 3), (1, "one", 4)], operation=3),
        store.file("I", [(5, "gone", 2), (5, "back", 5), (2, "again", 6)], operation=3),
    )
    assert read(table) == {2: "again", 4: "base", 5: "back", 7: "seven"}
    assert read(table, memory_bytes=1) == read(table)
    assert actions(table) == [
        "2 1 UPDATE_BEFORE 1",
        "2 1 UPDATE_AFTER 1",
        "2 1 DELETE 3",
        "2 2 DELETE 2",
        "2 2 INSERT 7",
        "2 3 INSERT 5",
        "3 1 DELETE 5",
        "3 2 INSERT 5",
        "3 3 DELETE 5",
        "3 4 DELETE 1",
        "3 5 INSERT 5",
        "3 6 INSERT 2",
    ]


def test_flink_upsert(table: Table, store: Store) -> None:
    store.commit(
        store.file("ED", [(1, "a", 1), (5, "b", 3), (1, "c", 5)]),
        store.file("I", [(1, "a", 2), (5, "b", 4), (1, "c", 6)]),
    )
    assert read(table) == {1: "c", 2: "base", 3: "base", 4: "base", 5: "b"}


def test_spark(table: Table, store: Store) -> None:
    """The id of a transaction that was begun before; one counter for deletes and one for updates and inserts."""
    begun = store.begin()
    store.commit(
        store.file("ED", [(1, "base", 1), (2, "base", 2)], txid=begun, operation=1),
        store.file("ED", [(3, "base", 1), (4, "base", 2)], txid=begun, operation=2),
        store.file("I", [(3, "three", 1), (4, "four", 2), (5, "five", 3)], txid=begun, operation=2),
    )
    assert read(table) == {3: "three", 4: "four", 5: "five"}
    assert read(table, where="id > 3") == {4: "four", 5: "five"}
    told = actions(table)
    assert len(told) == 7
    assert {f"{begun} 1 DELETE 1", f"{begun} 1 UPDATE_BEFORE 3", f"{begun} 1 UPDATE_AFTER 3"} <= {*told}
    assert [int(each.split()[1]) for each in told] == [1, 1, 1, 2, 2, 2, 3]


def test_transactions_count_not_commits(table: Table, store: Store) -> None:
    """Spark began before Flink and committed after it: Flink's word is the later one."""
    begun = store.begin()
    flink = store.commit(store.file("ED", [(1, "base", 1)], operation=1), store.file("I", [(1, "flink", 1)], operation=1))
    spark = store.commit(
        store.file("ED", [(1, "base", 1), (2, "base", 2)], txid=begun, operation=2),
        store.file("I", [(1, "spark", 1), (2, "spark", 2)], txid=begun, operation=2),
    )
    assert begun < flink < spark
    assert read(table) == {1: "flink", 2: "spark", 3: "base", 4: "base"}


def test_what_is_merged_goes_by_commits(table: Table, store: Store) -> None:
    """An overwrite that began before a commit does not hide it, though the transaction of its files is older still."""
    begun = store.begin()
    table.refresh().write(_rows({1: "new", 2: "new"}), mode="overwrite")
    store.commit(
        store.file("ED", [(1, "base", 1)], txid=begun),
        store.file("I", [(1, "late", 1), (8, "late", 2)], txid=begun),
    )
    # The base file knows of a later transaction, so its row stands; the new key is not lost.
    assert read(table) == {1: "new", 2: "new", 8: "late"}


def test_spark_upsert(table: Table, store: Store) -> None:
    """Updates with before-images, and inserts for keys that had no row."""
    begun = store.begin()
    store.commit(
        store.file("ED", [(1, "base", 1), (2, "base", 2)], txid=begun),
        store.file("I", [(1, "a", 1), (2, "b", 2), (5, "c", 3)], txid=begun),
    )
    assert read(table) == {1: "a", 2: "b", 3: "base", 4: "base", 5: "c"}


def test_nodes_of_several_levels(table: Table, store: Store) -> None:
    """Deletes above and below the node of a row reach it; others of the same level do not."""
    eight = {1: 8, 5: 12}  # the hashes of 1 and 5 are 32 and 36
    store.commit(
        store.file("ED", [(1, "base", 1)], node=eight[1]),
        store.file("ED", [(2, "base", 2), (3, "base", 3)], node=1),
        store.file("I", [(5, "deep", 4)], node=eight[5]),
        store.file("I", [(3, "high", 5)], node=1),
    )
    assert read(table) == {3: "high", 4: "base", 5: "deep"}
    store.commit(store.file("ED", [(5, "deep", 1)]), store.file("I", [(1, "here", 2)]))
    assert read(table) == {1: "here", 3: "high", 4: "base"}


def test_files_with_foreign_names(table: Table, store: Store) -> None:
    """They are inserts of the root node and of their commit; rows are as old as their place in the file."""
    store.commit({"part-0.parquet": [(1, "first", 0), (5, "five", 0), (1, "second", 0)]})
    assert read(table) == {1: "second", 2: "base", 3: "base", 4: "base", 5: "five"}
    store.commit(store.file("ED", [(5, "five", 1)]))
    assert 5 not in read(table)


def test_merged_sequences_of_older_tables(lake: Catalog, store: Store) -> None:
    """They are in a property of Base, if none of its snapshots knows better."""
    table = pyarctic.create_table("lake.db.t", SCHEMA.remove(2).remove_metadata(), primary_key=["id"])
    store.commit(store.file("I", [(1, "old", 1), (2, "old", 2)]))
    merged = store.commit(store.file("ED", [(1, "old", 1)]))
    told = {"": {"max-txId": str(merged), "base-op-time": "1690000000000"}}
    with lake.load_table("db.t").transaction() as work:
        work.set_properties({"table.partition-properties": json.dumps(told)})
    lake.load_table("db.t").append(_rows({2: "old"}).cast(table.scan().schema))
    store.commit(store.file("I", [(3, "new", 1)]))
    assert read(table) == {2: "old", 3: "new"}
    assert table.summary()["merged_sequences"] == {"": merged}
    table.write(_rows({4: "ours"}), mode="overwrite")
    assert read(table) == {4: "ours"}


def test_native_appends_to_base_are_tolerated(lake: Catalog, table: Table, store: Store) -> None:
    """Their snapshots say nothing of what was merged, and inherit it. Their rows are older than any change."""
    lake.load_table("db.t").append(_rows({5: "native", 6: "native"}).cast(table.scan().schema))
    assert table.refresh().summary()["merged_sequences"] == {"": 1}
    store.commit(store.file("ED", [(5, "native", 1), (1, "base", 2)]), store.file("I", [(5, "changed", 1)]))
    assert read(table) == {2: "base", 3: "base", 4: "base", 5: "changed", 6: "native"}


def test_a_key_of_two_writers_of_one_transaction(table: Table, store: Store) -> None:
    """Their order is undefined: no row is chosen by chance."""
    begun = store.begin()
    store.commit(
        store.file("I", [(5, "a", 1)], txid=begun, task=1, operation=1),
        store.file("I", [(5, "b", 1)], txid=begun, task=2, operation=2),
    )
    with pytest.raises(Damaged, match="key 5 was inserted twice"):
        read(table)
    table.refresh().write(_rows({5: "c"}), mode="upsert")
    assert read(table)[5] == "c"


@pytest.mark.usefixtures("lake")
def test_inserts_of_a_table_that_wants_upserts_delete_first() -> None:
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", pa.string())])
    table = pyarctic.create_table("lake.db.t", schema, ["id"], properties={"write.upsert.enabled": "true"})
    table.write(pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}))
    actions = table.scan(["_file_offset", "_change_action"], store="change").to_arrow().sort_by("_file_offset")
    assert actions["_change_action"].to_pylist() == ["DELETE", "INSERT"]
