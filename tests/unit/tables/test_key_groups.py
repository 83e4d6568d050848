"""Key groups: which files are read together, how groups are joined and divided, and how much work that is."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import LongType, NestedField

from pyarctic.tables.format.tree import Node
from pyarctic.tables.read import key_groups
from pyarctic.tables.read.key_groups import KeyGroup, group_by_keys, has_concurrent_inserts

KEY = NestedField(1, "id", LongType(), required=True)
SCHEMA = {
    "file_path": pl.String,
    "spec_id": pl.Int32,
    "partition": pl.String,
    "node_id": pl.Int64,
    "kind": pl.String,
    "writer": pl.String,
    "transaction_id": pl.Int64,
    "record_count": pl.Int64,
    "file_size_bytes": pl.Int64,
    "wanted": pl.Boolean,
    "lower_1": pl.Binary,
    "upper_1": pl.Binary,
}
Row = dict[str, Any]


def encode(bound: int | None) -> bytes | None:
    return None if bound is None else bound.to_bytes(8, "little", signed=True)


def frame(rows: list[Row]) -> pl.DataFrame:
    encoded = [{**row, "lower_1": encode(row["lower"]), "upper_1": encode(row["upper"])} for row in rows]
    return pl.DataFrame([{name: row[name] for name in SCHEMA} for row in encoded], schema=SCHEMA)


def file(path: str, kind: str, **facts: Any) -> Row:
    usual = {"spec_id": 0, "partition": "[]", "node_id": 1, "writer": path, "transaction_id": 1, "record_count": 10}
    return {"file_path": path, "kind": kind, "file_size_bytes": 100, "wanted": True, **usual, **facts}


def paths(files: pl.DataFrame) -> set[str]:
    return set(files["file_path"])


def shares_keys(one: Row, other: Row) -> bool:
    """Whether two files may have a key in common."""
    if one["partition"] != other["partition"] or Node.of_id(one["node_id"]).is_disjoint(Node.of_id(other["node_id"])):
        return False
    bounds = (one["lower"], one["upper"], other["lower"], other["upper"])
    return None in bounds or (one["lower"] <= other["upper"] and other["lower"] <= one["upper"])


ranges = st.tuples(st.integers(0, 20), st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))
facts = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["B", "B", "B", "I", "ED"]),
        "partition": st.sampled_from(["[]", '["a"]']),
        "node_id": st.sampled_from([1, 2, 3, 4, 5, 6, 7]),
        "transaction_id": st.integers(1, 4),
        "file_size_bytes": st.integers(1, 300),
        "wanted": st.booleans(),
        "range": st.one_of(ranges, ranges, ranges, st.just((None, None))),
    }
)


def made(chosen: list[Row]) -> list[Row]:
    rows = []
    for number, each in enumerate(chosen):
        lower, upper = each.pop("range")
        rows.append(file(f"{each['kind']}-{number}", **each, lower=lower, upper=upper))
    return rows


def grouped(rows: list[Row]) -> key_groups.KeyGroups:
    base, changes = ([row for row in rows if (row["kind"] == "B") == is_base] for is_base in (True, False))
    return group_by_keys(frame(base), frame(changes), [KEY])


def all_files(group: KeyGroup) -> set[str]:
    return paths(group.base) | paths(group.inserts) | paths(group.changes) | paths(group.competing_base)


def check_groups(groups: list[KeyGroup], rows: list[Row], *, is_packed: bool) -> None:
    known = {row["file_path"]: row for row in rows}
    read = Counter(path for group in groups for files in (group.base, group.inserts) for path in files["file_path"])
    assert read == Counter(path for path, row in known.items() if row["wanted"] and row["kind"] != "ED")
    for group in groups:
        together = all_files(group)
        others = known.keys() - together
        for path, other in product(paths(group.base) | paths(group.inserts), others):
            is_change = known[path]["kind"] != "B" or known[other]["kind"] != "B"
            is_later = known[other]["kind"] != "B" or known[other]["transaction_id"] >= known[path]["transaction_id"]
            assert not (shares_keys(known[path], known[other]) and is_change and is_later), (path, other)
        assert paths(group.inserts) <= paths(group.changes)
        assert group.changes.is_empty() or len({known[path]["partition"] for path in together}) == 1
        inserts = [row for row in map(known.__getitem__, paths(group.changes)) if row["kind"] == "I"]
        if not is_packed:
            first = min((row["transaction_id"] for row in inserts), default=None)
            assert all(first is not None and known[path]["transaction_id"] >= first for path in paths(group.competing_base))


@given(chosen=st.lists(facts, max_size=12), target=st.sampled_from([1, 100, 400, 1 << 20]))
def test_groups_have_all_versions_of_their_keys(chosen: list[Row], target: int) -> None:
    rows = made(chosen)
    groups = grouped(rows)
    assert len(groups) == len(list(groups))
    check_groups(list(groups), rows, is_packed=False)
    packed = list(groups.pack(target))
    check_groups(packed, rows, is_packed=True)
    assert all(group.data_bytes for group in packed)
    assert groups.data_bytes() == sum(group.data_bytes for group in groups)
    parts = [part for group in packed for part in group.split(target)]
    check_groups(parts, rows, is_packed=True)


@given(chosen=st.lists(facts, max_size=12))
def test_unchanged_files_are_those_without_changes_in_their_group(chosen: list[Row]) -> None:
    groups = grouped(made(chosen))
    expected = {path for group in groups if group.changes.is_empty() for path in group.base["file_path"]}
    unchanged, rest = groups.partition_unchanged(pl.lit(value=True))
    assert paths(unchanged) == expected
    assert not {path for group in rest for path in group.base["file_path"]} & expected
    nothing, everything = groups.partition_unchanged(pl.lit(value=False))
    assert nothing.is_empty()
    assert [all_files(group) for group in everything] == [all_files(group) for group in groups]


def nodes(count: int) -> list[Row]:
    """A base file and a file of inserts in each node of a level."""
    ids = range(count, 2 * count)
    return [file(f"{kind}-{n}", kind, node_id=n, lower=0, upper=9) for n in ids for kind in ("B", "I")]


def test_groups_are_built_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    build = key_groups._build_group
    built: list[int] = []

    def count_and_build(files: pl.DataFrame) -> KeyGroup:
        built.append(files.height)
        return build(files)

    monkeypatch.setattr(key_groups, "_build_group", count_and_build)
    groups = grouped(nodes(1024))
    assert len(groups) == 1024
    assert built == []
    first = next(iter(groups))
    assert built == [2]
    assert (paths(first.base), paths(first.changes)) == ({"B-1024"}, {"I-1024"})
    packed = groups.pack(64 * 400)
    assert built == [2]
    assert 16 <= len(list(packed)) <= 64
    assert len(built) == 1 + len(packed)


def test_writers_of_different_groups_do_not_compete() -> None:
    rows = nodes(4)
    (packed,) = grouped(rows).pack(1 << 20)
    assert packed.changes["writer"].n_unique() == 4
    assert not has_concurrent_inserts(packed.changes)
    again = {**rows[1], "file_path": "I-again", "writer": "another"}
    (packed,) = grouped([*rows, again]).pack(1 << 20)
    assert has_concurrent_inserts(packed.changes)
