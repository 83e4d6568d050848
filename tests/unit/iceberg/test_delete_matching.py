"""Which deletes hit which files: the rules one by one, and all of them at random against a loop over pairs."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given

from pyarctic.errors import Damaged
from pyarctic.iceberg.delete import match_deletes
from pyarctic.iceberg.manifest import FILE_SCHEMA

UNPARTITIONED = 9


def file(path: str, content: int = 0, sequence: int = 5, **facts: Any) -> dict[str, Any]:
    known = {
        "content": content,
        "file_path": path,
        "file_format": "PARQUET",
        "spec_id": 0,
        "partition": '["a"]',
        "record_count": 1,
        "file_size_bytes": 1,
        "data_sequence_number": sequence,
        "equality_ids": [1] if content == 2 else None,
    }
    return dict.fromkeys(FILE_SCHEMA) | known | facts


def data(path: str = "d", **facts: Any) -> dict[str, Any]:
    return file(path, 0, **facts)


def positions(path: str = "p", **facts: Any) -> dict[str, Any]:
    return file(path, 1, **facts)


def equality(path: str = "e", **facts: Any) -> dict[str, Any]:
    return file(path, 2, **facts)


def vector(path: str = "v", about: str = "d", **facts: Any) -> dict[str, Any]:
    return file(path, 1, file_format="PUFFIN", referenced_data_file=about, content_offset=4, content_size_bytes=40, **facts)


Found = tuple[str | None, set[str], set[str]]
"""A data file's vector, position delete files and equality delete files."""


def matched(*files: dict[str, Any]) -> dict[str, Found]:
    """Data file → its deletes."""
    frame = pl.DataFrame(list(files), schema=FILE_SCHEMA)
    matches = match_deletes(frame, [UNPARTITIONED])
    answer = {}
    flags = matches.data.select("file_path", hit=matches.has_deletes)
    for row, (path, hit) in enumerate(flags.iter_rows()):
        found = matches.of(row)
        assert bool(found) == hit
        name = None if found.vector is None else found.vector["file_path"]
        names = [frame["file_path"].to_list() for frame in (found.positions, found.equality)]
        assert all(len(set(one)) == len(one) for one in names)
        answer[path] = (name, set(names[0]), set(names[1]))
    return answer


@pytest.mark.parametrize(("delete", "hits"), [(4, False), (5, True), (6, True)])
def test_position_deletes_hit_files_of_their_own_commit(delete: int, hits: bool) -> None:
    expected: Found = (None, {"p"} if hits else set(), set())
    assert matched(data(), positions(sequence=delete)) == {"d": expected}
    assert matched(data(), positions(sequence=delete, referenced_data_file="d")) == {"d": expected}


@pytest.mark.parametrize(("delete", "hits"), [(4, False), (5, False), (6, True)])
def test_equality_deletes_are_strictly_newer(delete: int, hits: bool) -> None:
    expected: Found = (None, set(), {"e"} if hits else set())
    assert matched(data(), equality(sequence=delete)) == {"d": expected}
    everywhere: dict[str, Any] = {"spec_id": UNPARTITIONED, "partition": "[]"}
    assert matched(data(), equality(sequence=delete, **everywhere)) == {"d": expected}


@pytest.mark.parametrize("other", [{"partition": '["b"]'}, {"partition": "[null]"}, {"spec_id": 1}])
def test_deletes_stay_in_their_partition(other: dict[str, Any]) -> None:
    assert matched(data(), positions(sequence=9, **other), equality(sequence=9, **other)) == {"d": (None, set(), set())}


def test_null_partition_is_a_partition() -> None:
    null = {"partition": "[null]"}
    assert matched(data(**null), equality(sequence=9, **null)) == {"d": (None, set(), {"e"})}


def test_unpartitioned_equality_deletes_are_global_position_deletes_are_not() -> None:
    everywhere: dict[str, Any] = {"spec_id": UNPARTITIONED, "partition": "[]", "sequence": 9}
    found = matched(data("d1"), data("d2", spec_id=3, partition='["z"]'), data("d3", **everywhere | {"sequence": 1}),
                    equality(**everywhere), positions(**everywhere))  # fmt: skip
    assert found == {"d1": (None, set(), {"e"}), "d2": (None, set(), {"e"}), "d3": (None, {"p"}, {"e"})}


def test_named_deletes_hit_one_file() -> None:
    found = matched(data("d1"), data("d2"), positions(referenced_data_file="d1"))
    assert found == {"d1": (None, {"p"}, set()), "d2": (None, set(), set())}


def test_vector_replaces_position_deletes_of_its_file_only() -> None:
    found = matched(
        data("d1"), data("d2"), vector(about="d1", sequence=6), positions("p1", sequence=7),
        positions("p2", sequence=7, referenced_data_file="d1"), equality(sequence=7),
    )  # fmt: skip
    assert found == {"d1": ("v", set(), {"e"}), "d2": (None, {"p1"}, {"e"})}


def test_vector_of_the_same_commit_hits_an_older_one_is_refused() -> None:
    assert matched(data(), vector(sequence=5))["d"][0] == "v"
    with pytest.raises(Damaged, match="older than its data file: d") as caught:
        matched(data(), vector(sequence=4))
    assert caught.value.facts["file"] == "d"
    assert caught.value.hint


def test_two_vectors_are_refused() -> None:
    with pytest.raises(Damaged, match="two deletion vectors for one data file: d"):
        matched(data(), vector("v1"), vector("v2", sequence=6))


@pytest.mark.parametrize("make", [vector, lambda **facts: positions(referenced_data_file="d", **facts)])
@pytest.mark.parametrize("other", [{"partition": '["b"]'}, {"spec_id": 1}])
def test_delete_naming_a_file_of_another_partition_is_refused(make: Any, other: dict[str, Any]) -> None:
    with pytest.raises(Damaged, match="names a data file of another partition: d") as caught:
        matched(data(), make(sequence=9, **other))
    assert caught.value.facts["data_file"] == "d"


def test_delete_about_a_file_that_is_gone() -> None:
    found = matched(data(), vector(about="gone", partition='["b"]'), positions(referenced_data_file="gone"))
    assert found == {"d": (None, set(), set())}


def test_no_data_and_no_deletes() -> None:
    assert matched() == {}
    assert matched(positions(), equality(), vector()) == {}
    assert matched(data()) == {"d": (None, set(), set())}


PLACES = st.sampled_from([(0, '["a"]'), (0, '["b"]'), (0, "[null]"), (1, '["a"]'), (UNPARTITIONED, "[]")])
SEQUENCES = st.sampled_from([0, 1, 2, 3, 2**62])


@st.composite
def file_lists(draw: st.DrawFn) -> list[dict[str, Any]]:
    def place() -> dict[str, Any]:
        spec_id, partition = draw(PLACES)
        return {"spec_id": spec_id, "partition": partition, "sequence": draw(SEQUENCES)}

    files = [data(f"d{i}", **place()) for i in range(draw(st.integers(0, 6)))]
    deletes = [equality(f"e{i}", **place()) for i in range(draw(st.integers(0, 5)))]
    deletes += [positions(f"p{i}", **place()) for i in range(draw(st.integers(0, 5)))]
    if files:
        for index, about in enumerate(draw(st.lists(st.sampled_from(files), max_size=5))):
            where = {"spec_id": about["spec_id"], "partition": about["partition"], "sequence": draw(SEQUENCES)}
            deletes.append(positions(f"n{index}", referenced_data_file=about["file_path"], **where))
        for index, about in enumerate(draw(st.lists(st.sampled_from(files), max_size=3, unique_by=id))):
            where = {"spec_id": about["spec_id"], "partition": about["partition"]}
            sequence = max(draw(SEQUENCES), about["data_sequence_number"])
            deletes.append(vector(f"v{index}", about["file_path"], sequence=sequence, **where))
    made: list[dict[str, Any]] = draw(st.permutations([*files, *deletes]))
    return made


@given(files=file_lists())
def test_ranges_equal_pairs(files: list[dict[str, Any]]) -> None:
    expected = {}
    for one in (f for f in files if f["content"] == 0):
        vectors, by_position, by_value = [], set(), set()
        for delete in (f for f in files if f["content"] != 0):
            same_place = all(delete[key] == one[key] for key in ("spec_id", "partition"))
            older_or_same = one["data_sequence_number"] <= delete["data_sequence_number"]
            if delete["file_format"] == "PUFFIN":
                if delete["referenced_data_file"] == one["file_path"]:
                    vectors.append(delete["file_path"])
            elif delete["content"] == 1:
                if same_place and older_or_same and delete["referenced_data_file"] in (None, one["file_path"]):
                    by_position.add(delete["file_path"])
            elif one["data_sequence_number"] < delete["data_sequence_number"] and (
                same_place or delete["spec_id"] == UNPARTITIONED
            ):
                by_value.add(delete["file_path"])
        expected[one["file_path"]] = (vectors[0] if vectors else None, set() if vectors else by_position, by_value)
    assert matched(*files) == expected


LOST = '[false,"x"]'
"""A partition whose first value a rewritten manifest does not tell any more."""


@pytest.mark.parametrize("data_key", [LOST, '["a","x"]'])
@pytest.mark.parametrize("delete_key", [LOST, '["a","x"]'])
def test_position_deletes_survive_lost_partition_values(data_key: str, delete_key: str) -> None:
    """They name their data file, so what is left of the partition is enough."""
    one, other = data("d", partition=data_key), data("o", partition='["b","y"]')
    marker = data("m", partition=LOST)
    of_file = positions("f", referenced_data_file="d", partition=delete_key)
    found = matched(one, other, marker, positions("p", partition=delete_key), of_file)
    assert found["d"] == (None, {"p", "f"}, set())
    assert found["o"] == (None, set(), set())
    assert matched(one, marker, vector("v", "d", partition=delete_key))["d"] == ("v", set(), set())


@pytest.mark.parametrize("key", [LOST, '["a","x"]'])
def test_equality_deletes_are_not_guessed_when_partition_values_are_lost(key: str) -> None:
    with pytest.raises(Damaged, match="partition values were lost") as failure:
        matched(data("d", partition=LOST), equality("e", partition=key))
    assert failure.value.facts["file"] == "e"


def test_the_word_false_is_not_a_lost_value() -> None:
    key = '["false","a,false"]'
    assert matched(data("d", partition=key), equality("e", partition=key, sequence=6))["d"] == (None, set(), {"e"})
