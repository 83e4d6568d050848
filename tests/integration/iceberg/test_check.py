"""Every damage of an Iceberg table is found and named; sound tables of any history give no damage."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from pyiceberg.catalog import Catalog
from pyiceberg.transforms import IdentityTransform

import pyarctic
from pyarctic import config
from pyarctic.errors import Damaged, Unavailable
from pyarctic.iceberg.check import KINDS
from pyarctic.tables.check import CheckReport
from tests.integration.iceberg.conftest import Lake, rows
from tests.integration.iceberg.test_damaged_files import cut, manifest_list, on_disk, overwrite, remove
from tests.models.spec import SpecFile, SpecTable
from tests.models.spec.history import History
from tests.support.metadata_files import rewritten

NAME = "lake.db.t"
HISTORIES = int(os.environ.get("HISTORIES", "8"))
Break = Callable[[SpecTable, SpecFile], str | None]
"""Damages a table with one data file of four rows; returns the file that must be named, None if there is none."""


def check(**options: Any) -> CheckReport:
    return pyarctic.check(NAME, **options)


def codes(report: CheckReport) -> dict[str, list[str | None]]:
    """The files of every finding."""
    return {finding.code: finding.problems["file_path"].to_list() for finding in report.findings}


# -- what a check finds without reading rows ---------------------------------------------------------------------


def missing_data(_: SpecTable, data: SpecFile) -> str:
    return remove(data.path)


def missing_manifest(table: SpecTable, _: SpecFile) -> str:
    return remove(table.manifests[0].path)


def missing_manifest_list(table: SpecTable, _: SpecFile) -> str:
    return remove(manifest_list(table))


def garbled_manifest_list(table: SpecTable, _: SpecFile) -> str:
    return overwrite(manifest_list(table), b"no avro")


def cut_data(_: SpecTable, data: SpecFile) -> str:
    return cut(data.path)


def cut_manifest(table: SpecTable, _: SpecFile) -> str:
    return cut(table.manifests[0].path)


def longer_manifest(table: SpecTable, _: SpecFile) -> str:
    """Of a length that its list does not know; read to its end, it is what it was."""
    table.manifests[0].length -= 1
    table.commit()
    return table.manifests[0].path


def wrong_size(table: SpecTable, _: SpecFile) -> str:
    other = table.data(rows(7))
    table.commit(replace(other, size=other.size + 1))
    return other.path


def no_parquet(_: SpecTable, data: SpecFile) -> str:
    return overwrite(data.path, b"x" * data.size)


def wrong_count(table: SpecTable, _: SpecFile) -> str:
    other = table.data(rows(7, 8), records=3)
    table.commit(other)
    return other.path


def low_upper_bound(table: SpecTable, _: SpecFile) -> str:
    other = table.data(rows(7, 800))
    table.commit(replace(other, upper={**other.upper, 1: struct.pack("<i", 799)}))
    return other.path


def high_lower_bound(table: SpecTable, _: SpecFile) -> str:
    other = table.data(rows(7, name="m"))
    table.commit(replace(other, lower={**other.lower, 2: b"n"}))
    return other.path


def too_few_nulls(table: SpecTable, _: SpecFile) -> str:
    other = table.data([*rows(7), {**rows(8)[0], "name": None}])
    table.commit(replace(other, nulls={**other.nulls, 2: 0}))
    return other.path


def all_nulls(table: SpecTable, _: SpecFile) -> str:
    other = table.data(rows(7, 8))
    table.commit(replace(other, values={**other.values, 2: 1}, nulls={**other.nulls, 2: 0}))
    return other.path


def listed_twice(table: SpecTable, data: SpecFile) -> str:
    table.commit(data)
    return data.path


def wrong_counts_of_a_manifest(table: SpecTable, _: SpecFile) -> str:
    table.manifests[0].counts = (2, 0, 0)
    table.commit()
    return table.manifests[0].path


def data_among_deletes(table: SpecTable, _: SpecFile) -> str:
    table.manifests[0].content = 1
    table.commit()
    return table.manifests[0].path


def unknown_spec(table: SpecTable, data: SpecFile) -> str:
    table.manifests[0].spec_id = 7
    table.commit()
    return data.path


def lost_snapshot(table: SpecTable, _: SpecFile) -> None:
    table.metadata["refs"]["audit"] = {"snapshot-id": 5, "type": "tag"}
    table.register()


def lost_current_snapshot(table: SpecTable, _: SpecFile) -> None:
    table.metadata["current-snapshot-id"] = table.metadata["refs"]["main"]["snapshot-id"] = 5
    table.register()


def data_from_the_future(table: SpecTable, _: SpecFile) -> str:
    other = table.data(rows(9), sequence=99)
    table.commit(other)
    return other.path


def snapshots_out_of_order(table: SpecTable, _: SpecFile) -> None:
    table.commit(table.data(rows(9)))
    table.metadata["snapshots"][0]["sequence-number"] = 2
    table.register()


def table_behind_its_snapshots(table: SpecTable, _: SpecFile) -> None:
    table.metadata["last-sequence-number"] = 0
    table.register()


def delete_of_another_partition(table: SpecTable, data: SpecFile) -> str:
    spec = table.partition_by(("part", "identity"))
    other = replace(table.position_deletes([(data.path, 0)], data, named=True), partition=("elsewhere",), spec_id=spec)
    table.commit(other)
    return other.path


def wrong_totals(table: SpecTable, _: SpecFile) -> None:
    table.metadata["snapshots"][-1]["summary"]["total-records"] = "5"
    table.register()


def missing_statistics(table: SpecTable, _: SpecFile) -> str:
    path = (table.folder / "metadata" / "gone.stats").as_uri()
    name_statistics(table, path, 100)
    return path


def shorter_statistics(table: SpecTable, _: SpecFile) -> str:
    path = table.folder / "metadata" / "short.stats"
    path.write_bytes(b"PFA1")
    name_statistics(table, path.as_uri(), 100)
    return path.as_uri()


def name_statistics(table: SpecTable, path: str, size: int) -> None:
    file = {"snapshot-id": table.metadata["current-snapshot-id"], "statistics-path": path, "file-size-in-bytes": size}
    table.metadata["statistics"] = [file | {"file-footer-size-in-bytes": 10, "blob-metadata": []}]
    table.register()


def dangling_delete(table: SpecTable, data: SpecFile) -> str:
    delete = table.position_deletes([(data.path, 0)], data, named=True)
    table.commit(delete)
    table.commit(removed=[data], operation="delete")
    return delete.path


DAMAGE: list[tuple[str, Break]] = [
    ("missing-file", missing_data),
    ("missing-file", missing_manifest),
    ("missing-file", missing_manifest_list),
    ("unreadable-file", garbled_manifest_list),
    ("wrong-size", cut_data),
    ("wrong-size", cut_manifest),
    ("wrong-size", longer_manifest),
    ("wrong-size", wrong_size),
    ("unreadable-file", no_parquet),
    ("wrong-record-count", wrong_count),
    ("wrong-bounds", low_upper_bound),
    ("wrong-bounds", high_lower_bound),
    ("wrong-bounds", too_few_nulls),
    ("wrong-bounds", all_nulls),
    ("file-listed-twice", listed_twice),
    ("wrong-manifest", wrong_counts_of_a_manifest),
    ("wrong-manifest", data_among_deletes),
    ("unknown-spec", unknown_spec),
    ("missing-snapshot", lost_snapshot),
    ("missing-snapshot", lost_current_snapshot),
    ("wrong-sequence-number", data_from_the_future),
    ("wrong-sequence-number", snapshots_out_of_order),
    ("wrong-sequence-number", table_behind_its_snapshots),
    ("contradicting-deletes", delete_of_another_partition),
    ("wrong-summary", wrong_totals),
    ("missing-statistics", missing_statistics),
    ("missing-statistics", shorter_statistics),
    ("dangling-deletes", dangling_delete),
]


@pytest.mark.parametrize("reads_rows", [False, True])
@pytest.mark.parametrize(("code", "break_"), DAMAGE, ids=lambda value: getattr(value, "__name__", value))
def test_damage_is_found(lake: Lake, code: str, break_: Break, reads_rows: bool) -> None:
    table = lake.make()
    data = table.data(rows(1, 2, 3, 4))
    table.commit(data)
    assert check(rows=reads_rows).findings == ()
    path = break_(table, data)
    report = check(rows=reads_rows)
    assert {code: set(paths) for code, paths in codes(report).items()} == {code: {path}}
    assert report.is_damaged == (KINDS[code].severity == "damage")
    [finding] = report.findings
    assert finding.title
    assert finding.hint


# -- format version 3 ---------------------------------------------------------------------------------------------


def corrupt_vector(table: SpecTable, data: SpecFile) -> str:
    [vector] = table.vectors({data.path: [0, 1]}, [data])
    table.commit(vector)
    path = on_disk(vector.path)
    content = bytearray(path.read_bytes())
    content[(vector.offset or 0) + 12] ^= 1
    path.write_bytes(content)
    return vector.path


def vector_of_another_cardinality(table: SpecTable, data: SpecFile) -> str:
    [vector] = table.vectors({data.path: [0, 1]}, [data])
    table.commit(replace(vector, records=1))
    return vector.path


def vector_beyond_the_end(table: SpecTable, data: SpecFile) -> str:
    [vector] = table.vectors({data.path: [0, 4]}, [data])
    table.commit(vector)
    return vector.path


def two_vectors(table: SpecTable, data: SpecFile) -> str:
    table.commit(*table.vectors({data.path: [0]}, [data]))
    table.commit(*table.vectors({data.path: [1]}, [data]))
    return data.path


def shared_row_ids(table: SpecTable, _: SpecFile) -> str:
    other = table.data(rows(9), first_row_id=2)
    table.commit(other)
    return other.path


def low_next_row_id(table: SpecTable, data: SpecFile) -> str:
    table.metadata["next-row-id"] = 3
    table.register()
    return data.path


@pytest.mark.parametrize(
    ("code", "break_"),
    [
        ("corrupt-vector", corrupt_vector),
        ("corrupt-vector", vector_of_another_cardinality),
        ("wrong-positions", vector_beyond_the_end),
        ("contradicting-deletes", two_vectors),
        ("wrong-row-ids", shared_row_ids),
        ("wrong-row-ids", low_next_row_id),
    ],
)
def test_damage_of_version_3_is_found(lake: Lake, code: str, break_: Break) -> None:
    table = lake.make(version=3)
    data = table.data(rows(1, 2, 3, 4))
    table.commit(data)
    table.commit(*table.vectors({data.path: [3]}, [data]))
    table.commit(removed=[file for m in table.manifests for file in m.entries if file.content], operation="delete")
    assert check(rows=True).findings == ()
    path = break_(table, data)
    report = check()
    assert {code: path in paths for code, paths in codes(report).items()} == {code: True}
    assert report.is_damaged


# -- what only reading the rows shows -----------------------------------------------------------------------------


def test_a_page_that_does_not_match_its_checksum(lake: Lake) -> None:
    table = lake.make()
    data = table.data(rows(*range(1000)))
    table.commit(data)
    path = on_disk(data.path)
    content = pq.read_table(path)
    pq.write_table(content, path, write_page_checksum=True, compression="none", use_dictionary=False)
    changed = bytearray(path.read_bytes())
    table.commit(replace(data, size=len(changed)), removed=[data], operation="overwrite")
    assert check(rows=True).findings == ()
    changed[2000] ^= 1  # in the values of the first column: any value is valid there
    path.write_bytes(changed)
    assert check(rows=False).findings == ()
    assert codes(check(rows=True)) == {"unreadable-file": [data.path]}


@pytest.mark.parametrize("position", [4, -1])
def test_a_position_that_no_row_has(lake: Lake, position: int) -> None:
    table = lake.make()
    data = table.data(rows(1, 2, 3, 4))
    table.commit(data)
    delete = table.position_deletes([(data.path, 1), (data.path, position)], data)
    table.commit(delete)
    assert check(rows=False).findings == ()
    assert codes(check(rows=True)) == {"wrong-positions": [delete.path]}


def test_a_position_delete_of_a_file_that_is_gone_is_a_note(lake: Lake) -> None:
    table = lake.make()
    data, other = table.data(rows(1, 2)), table.data(rows(3))
    table.commit(data, other)
    delete = table.position_deletes([(data.path, 1), (other.path, 0)], data)
    table.commit(delete)
    table.commit(removed=[other], operation="delete")
    report = check(rows=True)
    assert codes(report) == {"dangling-positions": [delete.path]}
    assert not report.is_damaged


def test_rows_in_the_file_of_another_partition(lake: Lake) -> None:
    """Deleted ones do no harm."""
    table = lake.make()
    spec = table.partition_by(("part", "identity"))
    good = table.data(rows(1, 2, part="a"), ("a",), spec_id=spec)
    data = table.data([*rows(1, 2, part="a"), *rows(3, 4, part="b")], ("a",), spec_id=spec)
    table.commit(good)
    assert check(rows=True).findings == ()
    table.commit(data)
    assert check(rows=False).findings == ()
    report = check(rows=True)
    assert [(f.code, f.files, f.rows) for f in report.findings] == [("wrong-partition", 1, 2)]
    table.commit(table.position_deletes([(data.path, 2)], data, named=True))
    assert [f.rows for f in check(rows=True).findings] == [1]
    table.commit(table.equality_deletes([{"id": 4}], ("a",), spec_id=spec))
    assert check(rows=True).findings == ()


def test_a_position_delete_of_a_file_in_another_partition(lake: Lake) -> None:
    """Some readers apply it, others do not."""
    table = lake.make()
    spec = table.partition_by(("part", "identity"))
    one = table.data(rows(1, 2, part="a"), ("a",), spec_id=spec)
    other = table.data(rows(3, 4, part="b"), ("b",), spec_id=spec)
    table.commit(one, other)
    delete = table.position_deletes([(one.path, 0), (other.path, 1)], one)
    table.commit(delete)
    assert check(rows=False).findings == ()
    report = check(rows=True)
    assert codes(report) == {"contradicting-deletes": [delete.path]}
    assert report.findings[0].rows == 1


PARTITIONS: dict[str, tuple[pa.Array, bytes]] = {
    "i": (pa.array([-3, None, 5], pa.int32()), struct.pack("<i", 4)),
    "l": (pa.array([-3, 7, 5], pa.int64()), struct.pack("<q", 6)),
    "s": (pa.array(["a", "é", None]), b"z"),
    "b": (pa.array([b"", b"\xff", None]), b"\xfe"),
    "d": (pa.array([Decimal("-1.50"), Decimal("300.00")], pa.decimal128(9, 2)), b"\x01"),
    "f": (pa.array([float("nan"), 1.5, -2.5], pa.float64()), struct.pack("<d", 1.25)),
    "t": (pa.array([-1, 5, None], pa.date32()), struct.pack("<i", 4)),
    "o": (pa.array([True, False, None]), b"\0"),
    "u": (pa.array([None, None], pa.int32()), b""),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_ranges_of_partition_values_in_the_manifest_list(lake: Lake, name: str) -> None:
    values, low = PARTITIONS[name]
    data = pa.table({name: values})
    lake.catalog.create_table("db.t", data.schema)
    with lake.catalog.load_table("db.t").update_spec() as update:
        update.add_field(name, IdentityTransform(), "p")
    pyarctic.table(NAME).write(data)
    assert check(rows=True).findings == ()
    loaded = lake.catalog.load_table("db.t")
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    [manifest] = snapshot.manifests(loaded.io)

    def change(facts: dict[str, Any]) -> list[str | None]:
        def edit(_: Any, manifests: list[dict[str, Any]]) -> None:
            manifests[0]["partitions"][0] |= facts

        rewritten(snapshot.manifest_list, edit)
        return codes(check()).get("wrong-manifest", [])

    [range_] = manifest.partitions or []
    if low:
        assert change({"upper_bound": low}) == [manifest.manifest_path]
        assert change({"upper_bound": None}) == [manifest.manifest_path]
        assert change({"upper_bound": range_.upper_bound}) == []
    if values.null_count:
        assert change({"contains_null": False}) == [manifest.manifest_path]
        assert change({"contains_null": True}) == []
    if name == "f":
        assert change({"contains_nan": False}) == [manifest.manifest_path]
        assert change({"contains_nan": None}) == []


def test_an_equality_delete_without_its_column(lake: Lake) -> None:
    table = lake.make()
    table.commit(table.data(rows(1, 2)))
    delete = replace(table.equality_deletes([{"id": 1}]), equality_ids=(1, 2))
    table.commit(delete)
    assert check(rows=False).findings == ()
    assert codes(check(rows=True)) == {"unreadable-file": [delete.path]}


def test_a_file_whose_columns_are_not_those_of_the_table(lake: Lake) -> None:
    table = lake.make()
    data = table.data(rows(1, 2))
    path = on_disk(data.path)
    names = pq.read_table(path)
    texts = names.set_column(0, names.schema.field("id").with_type(pa.string()), pa.array(["one", "two"]))
    pq.write_table(texts, path)
    table.commit(replace(data, size=path.stat().st_size, lower={}, upper={}))
    assert check(rows=False).findings == ()
    assert codes(check(rows=True)) == {"unreadable-file": [data.path]}


# -- snapshots ----------------------------------------------------------------------------------------------------


def test_older_snapshots_are_checked_on_request(lake: Lake) -> None:
    table = lake.make()
    data, other = table.data(rows(1)), table.data(rows(2))
    table.commit(data, other)
    table.commit(removed=[data], operation="delete")
    table.metadata["snapshots"][0]["summary"]["total-records"] = "7"
    table.register()
    remove(data.path)
    assert check().findings == ()
    report = check(all_snapshots=True)
    assert codes(report) == {"missing-file": [data.path], "wrong-summary": [None]}
    assert [finding.to_dict()["repair"] for finding in report.findings] == [None, None]
    assert report.files_checked == 2  # each file once, although two manifests list one of them
    assert check(all_snapshots=True, repair=True).repairs == ()  # history is not changed


def test_a_table_without_a_snapshot_is_sound(lake: Lake) -> None:
    lake.make()
    assert check(rows=True, all_snapshots=True).findings == ()


def test_several_problems_are_grouped_by_kind_worst_first(lake: Lake) -> None:
    table = lake.make()
    files = [table.data(rows(number)) for number in range(6)]
    table.commit(*files)
    for file in files[:3]:
        remove(file.path)
    cut(files[3].path)
    wrong_totals(table, files[0])
    report = check()
    assert [(f.code, f.severity, f.files, f.rows) for f in report.findings] == [
        ("missing-file", "damage", 3, 3),
        ("wrong-size", "damage", 1, 1),
        ("wrong-summary", "warning", 0, None),
    ]
    document = json.loads(json.dumps(report.to_dict()))
    assert document["damaged"]
    assert document["findings"][0]["problems"][0] == {
        "file_path": files[0].path,
        "detail": "file is missing",
        "rows": 1,
    }


def test_encrypted_files_are_a_note(lake: Lake) -> None:
    table = lake.make()
    secret = table.data(rows(1), key_metadata=b"key")
    table.commit(secret)
    assert codes(check(rows=True)) == {"not-checked": [secret.path]}


def test_storage_that_refuses_is_no_damage(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.make()
    table.commit(table.data(rows(1)))

    def refuse(*_: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr("pyiceberg.io.pyarrow.PyArrowFile.open", refuse)
    with pytest.raises((Unavailable, Damaged)) as refused:
        check()
    assert isinstance(refused.value, Unavailable)


def test_progress_is_reported(lake: Lake) -> None:
    table = lake.make()
    table.commit(table.data(rows(1)), table.data(rows(2)))

    class Listener:
        steps: list[tuple[str, int]] = []  # noqa: RUF012
        done = 0

        def started(self, what: str, files: int) -> None:
            self.steps.append((what, files))

        def advanced(self, files: int) -> None:
            self.done += files

    listener = Listener()
    check(rows=True, listener=listener)
    assert (listener.steps, listener.done) == ([("files", 2), ("rows", 2)], 4)


# -- repairs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_wrong_totals_are_repaired(lake: Lake, version: int) -> None:
    table = lake.make(version=version)
    data = table.data(rows(1, 2, 3))
    table.commit(data)
    wrong = {"total-records": "5", "total-files-size": "1", "total-data-files": "0", "total-position-deletes": "9"}
    table.metadata["snapshots"][-1]["summary"] |= wrong
    table.register()
    planned = check(repair=True, dry_run=True)
    assert [(repair.code, repair.snapshot_id) for repair in planned.repairs] == [("wrong-summary", None)]
    assert planned.findings[0].to_dict()["repair"] == planned.repairs[0].action
    assert codes(check()) == {"wrong-summary": [None]}
    before = lake.open().scan().to_arrow()
    report = check(repair=True)
    snapshot = lake.open().view.metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert report.repairs[0].snapshot_id == snapshot.snapshot_id
    totals = snapshot.summary.additional_properties
    assert {name: totals[name] for name in wrong} == {
        "total-records": "3",
        "total-files-size": str(data.size),
        "total-data-files": "1",
        "total-position-deletes": "0",
    }
    assert check(rows=True).findings == ()
    assert lake.open().scan().to_arrow() == before


def test_dangling_deletes_are_repaired(lake: Lake) -> None:
    table = lake.make()
    data, other = table.data(rows(1, 2)), table.data(rows(3))
    table.commit(data, other)
    table.commit(table.position_deletes([(other.path, 0)], other, named=True))
    table.commit(table.equality_deletes([{"id": 1}]))
    table.commit(removed=[other], operation="delete")
    assert lake.open().files(content="position-deletes").height == 1
    report = check(repair=True)
    assert [repair.code for repair in report.repairs] == ["dangling-deletes"]
    assert check(rows=True).findings == ()
    assert lake.open().files(content="position-deletes").height == 0
    assert lake.open().files(content="equality-deletes").height == 1
    assert lake.open().scan(["id"]).to_arrow().to_pylist() == [{"id": 2}]


def test_what_cannot_be_repaired_is_left_alone(lake: Lake) -> None:
    table = lake.make()
    data = table.data(rows(1))
    table.commit(data)
    remove(data.path)
    report = check(repair=True)
    assert (report.repairs, report.is_damaged) == ((), True)
    assert lake.open().snapshots().height == 1


# -- sound tables -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Catalog, Path, Iterator[int]]]:
    folder = tmp_path_factory.mktemp("lake")
    catalog = pyarctic.catalog("model", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    yield catalog, folder, count(1)
    config.reset()


@pytest.mark.parametrize("version", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=HISTORIES)
def test_random_histories_are_sound(
    version: int, histories: tuple[Catalog, Path, Iterator[int]], data: st.DataObject
) -> None:
    catalog, folder, numbers = histories
    name = f"n.t{next(numbers)}"
    history = History(data.draw, catalog, name, folder / name, version=version)
    for _ in range(data.draw(st.integers(1, 8))):
        history.step()
    report = pyarctic.check(f"model.{name}", rows=True, all_snapshots=True)
    assert [finding for finding in report.findings if finding.severity != "note"] == []


def test_tables_of_pyiceberg_are_sound(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ok", pa.bool_()), ("at", pa.timestamp("us"))])
    made = lake.catalog.create_table("db.t", schema)
    for start in range(3):
        columns = {"id": [start, -start], "name": ["ä" * 40, None], "ok": [True, False], "at": [start, None]}
        made.append(pa.table(columns, schema=schema))
    made.delete("id = 2")
    made.overwrite(pa.table({"id": [7], "name": ["x"], "ok": [None], "at": [0]}, schema=schema), "id = 1")
    assert check(rows=True, all_snapshots=True).findings == ()
