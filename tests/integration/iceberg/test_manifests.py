"""Manifests of every format version, partition type and writer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.manifest.file_list import FileList, ManifestReader, read_metrics
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder
from pyarctic.iceberg.manifest.reader import FILE_SCHEMA, ManifestRef
from tests.integration.iceberg.conftest import Lake, rows
from tests.models.spec.avro_schemas import manifest_entry, optional
from tests.models.spec.table import SpecTable, encode

IO = PyArrowFileIO()


def ref(path: Path, **facts: Any) -> ManifestRef:
    known: dict[str, Any] = {
        "path": path.as_uri(),
        "length": path.stat().st_size,
        "spec_id": 0,
        "content": 0,
        "sequence_number": 7,
        "added_snapshot_id": 70,
        "first_row_id": None,
        "key_metadata": None,
    }
    return ManifestRef(**known | facts)


def entry(path: str, status: int = 1, **facts: Any) -> dict[str, Any]:
    own = ("snapshot_id", "sequence_number", "file_sequence_number")
    outer: dict[str, Any] = {key: facts.pop(key) for key in own if key in facts}
    data_file = {
        "content": 0,
        "file_path": path,
        "file_format": "parquet",
        "partition": {},
        "record_count": 10,
        "file_size_in_bytes": 100,
        "block_size_in_bytes": 1,
    }
    return {"status": status, **outer, "data_file": data_file | facts}


def write(
    folder: Path, entries: Sequence[dict[str, Any]], *, version: int = 2, partition: Sequence[dict[str, Any]] = ()
) -> Path:
    path = folder / "manifest.avro"
    path.write_bytes(encode(manifest_entry(version, list(partition)), entries, "deflate", 16000, {}))
    return path


# -- inheritance -----------------------------------------------------------------------------------------------------


def test_first_version_has_no_sequence_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, [entry("a", snapshot_id=5), entry("b", status=0, snapshot_id=4)], version=1)
    frame = ManifestReader(IO).files(ref(path, sequence_number=0))
    assert frame.schema == FILE_SCHEMA
    assert frame["data_sequence_number"].to_list() == frame["file_sequence_number"].to_list() == [0, 0]
    assert frame["snapshot_id"].to_list() == [5, 4]
    assert frame["content"].to_list() == [0, 0]
    assert frame["file_format"].to_list() == ["PARQUET", "PARQUET"]
    assert frame["manifest_path"].unique().to_list() == [path.as_uri()]


def test_added_entries_inherit_others_do_not(tmp_path: Path) -> None:
    entries = [
        entry("added"),
        entry("added with its own", sequence_number=3, snapshot_id=71),
        entry("existing", status=0, sequence_number=2, file_sequence_number=2, snapshot_id=60),
        entry("deleted", status=2, sequence_number=2, file_sequence_number=2, snapshot_id=70),
    ]
    frame = ManifestReader(IO).files(ref(write(tmp_path, entries)))
    columns = ["file_path", "data_sequence_number", "file_sequence_number", "snapshot_id"]
    assert frame.select(columns).rows() == [
        ("added", 7, 7, 70),
        ("added with its own", 3, 7, 71),
        ("existing", 2, 2, 60),
    ]


def test_existing_entry_without_sequence_number_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [entry("a"), entry("b", status=0)])
    with pytest.raises(Damaged, match="without a sequence number") as caught:
        ManifestReader(IO).files(ref(path))
    assert caught.value.facts["file"] == path.as_uri()
    # In a manifest of the first version they are all zero.
    assert ManifestReader(IO).files(ref(path, sequence_number=0))["data_sequence_number"].to_list() == [0, 0]


def test_first_row_ids(tmp_path: Path) -> None:
    entries = [
        entry("a", record_count=10),
        entry("gone", status=2, record_count=1000, sequence_number=1, file_sequence_number=1),
        entry("own", record_count=5, first_row_id=9000),
        entry("b", record_count=7),
        entry("c", record_count=1),
    ]
    path = write(tmp_path, entries, version=3)
    frame = ManifestReader(IO).files(ref(path, first_row_id=100))
    assert frame["first_row_id"].to_list() == [100, 9000, 110, 117]
    assert ManifestReader(IO).files(ref(path))["first_row_id"].to_list() == [None] * 4


# -- fields and partitions -------------------------------------------------------------------------------------------


def test_fields_are_found_by_id(tmp_path: Path) -> None:
    """Under other names, which some writers use, and without the optional ones."""
    schema = manifest_entry(2, [])
    inner = next(f for f in schema["fields"] if f["name"] == "data_file")["type"]
    renamed = {"file_path": "path", "record_count": "rows", "file_size_in_bytes": "bytes", "content": "kind"}
    inner["fields"] = [f | {"name": renamed.get(f["name"], f["name"])} for f in inner["fields"] if f["field-id"] <= 134]
    data_file = {"kind": 1, "path": "a", "file_format": "PARQUET", "partition": {}, "rows": 3, "bytes": 4}
    path = tmp_path / "m.avro"
    path.write_bytes(encode(schema, [{"status": 1, "data_file": data_file}], "null", 16000, {}))
    row = ManifestReader(IO).files(ref(path, content=1)).row(0, named=True)
    assert (row["content"], row["file_path"], row["record_count"], row["file_size_bytes"]) == (1, "a", 3, 4)
    assert row["equality_ids"] is row["referenced_data_file"] is row["sort_order_id"] is None


def test_avro_that_is_no_manifest(tmp_path: Path) -> None:
    path = tmp_path / "m.avro"
    schema = {"type": "record", "name": "r", "fields": [{"name": "status", "type": "int"}]}
    path.write_bytes(encode(schema, [{"status": 1}], "null", 16000, {}))
    with pytest.raises(Damaged, match="not an Iceberg manifest"):
        ManifestReader(IO).files(ref(path))


def fixed(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def decimal(precision: int, size: int) -> dict[str, Any]:
    return fixed(f"decimal_{precision}", size, logicalType="decimal", precision=precision, scale=2)


UUID = bytes(range(16))
TYPES: list[tuple[str, Any, list[Any], list[Any]]] = [
    # Iceberg type, Avro type, values as Avro holds them, values as the decoder gives them
    ("boolean", "boolean", [True, False], [True, False]),
    ("int", "int", [-5, 2**31 - 1], [-5, 2**31 - 1]),
    ("long", "long", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    ("float", "float", [0.5, float("inf")], [0.5, float("inf")]),
    ("double", "double", [0.1, -1e300], [0.1, -1e300]),
    ("date", {"type": "int", "logicalType": "date"}, [-1, 20000], [-1, 20000]),
    ("time", {"type": "long", "logicalType": "time-micros"}, [0, 86399999999], [0, 86399999999]),
    ("timestamp", {"type": "long", "logicalType": "timestamp-micros"}, [-1, 10**15], [-1, 10**15]),
    ("string", "string", ['a"\\\n', "é/,[]"], ['a"\\\n', "é/,[]"]),
    ("string", "string", ["", "null"], ["", "null"]),
    ("uuid", fixed("uuid_fixed", 16, logicalType="uuid"), [UUID, UUID[::-1]], [UUID, UUID[::-1]]),
    ("fixed[3]", fixed("fixed_3", 3), [b"\x00\x01\xff", b"abc"], [b"\x00\x01\xff", b"abc"]),
    ("binary", "bytes", [b"", b"\x00\xff"], [b"", b"\x00\xff"]),
    ("decimal(9, 2)", decimal(9, 4), [Decimal("-12.34"), Decimal("200.00")], [Decimal("-12.34"), Decimal("200.00")]),
]


def table_metadata(type_: str) -> TableMetadataV2:
    return TableMetadataV2.model_validate(
        {
            "format-version": 2,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "file:///x",
            "last-updated-ms": 1,
            "last-column-id": 1,
            "last-sequence-number": 0,
            "current-schema-id": 0,
            "schemas": [
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [{"id": 1, "name": "c", "required": False, "type": type_}],
                }
            ],
            "default-spec-id": 0,
            "partition-specs": [
                {
                    "spec-id": 0,
                    "fields": [{"source-id": 1, "field-id": 1000, "name": "c", "transform": "identity"}],
                }
            ],
            "last-partition-id": 1000,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
        }
    )


@pytest.mark.parametrize(("type_", "avro", "values", "expected"), TYPES, ids=lambda v: v if isinstance(v, str) else "")
def test_partition_types(tmp_path: Path, type_: str, avro: Any, values: list[Any], expected: list[Any]) -> None:
    entries = [entry(str(index), partition={"c": value}) for index, value in enumerate([*values, None, values[0]])]
    frame = ManifestReader(IO).files(ref(write(tmp_path, entries, partition=[optional("c", avro, 1000)])))
    keys = frame["partition"].to_list()
    decoder = PartitionDecoder(table_metadata(type_))
    assert [decoder.values(0, key)[0] for key in keys] == [*expected, None, expected[0]]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]
    assert decoder.constants(0, keys[0]) == {1: expected[0]}
    assert decoder.path(0, keys[2]) == "c=null"


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("int", "long", -3, -3),
        (
            "float",
            "double",
            struct.unpack("<f", struct.pack("<f", 0.1))[0],
            struct.unpack("<f", struct.pack("<f", 0.1))[0],
        ),
        (decimal(9, 4), decimal(12, 6), Decimal("200.00"), Decimal("200.00")),
        (decimal(9, 4), decimal(12, 6), Decimal("-1.00"), Decimal("-1.00")),
        (decimal(9, 4), decimal(38, 16), Decimal("-99999.68"), Decimal("-99999.68")),
        (decimal(9, 4), decimal(12, 6), Decimal("0.00"), Decimal("0.00")),
    ],
)
def test_partition_of_a_promoted_column_is_the_same(tmp_path: Path, old: Any, new: Any, before: Any, after: Any) -> None:
    """Deletes written after the promotion must find the partition of data written before it."""
    keys = []
    for avro, value in ((old, before), (new, after)):
        path = write(tmp_path, [entry("a", partition={"c": value})], partition=[optional("c", avro, 1000)])
        keys.append(ManifestReader(IO).files(ref(path))["partition"][0])
    assert keys[0] == keys[1]


def test_several_partition_fields(tmp_path: Path) -> None:
    fields = [optional("a", "string", 1000), optional("b", "int", 1001)]
    pairs = [("x", 1), ("x", None), (None, 1), (None, None), ("x,1", 1), ('x","1', None)]
    entries = [entry(str(i), partition={"a": a, "b": b}) for i, (a, b) in enumerate(pairs)]
    frame = ManifestReader(IO).files(ref(write(tmp_path, entries, partition=fields)))
    assert frame["partition"].n_unique() == len(pairs)
    unpartitioned = ManifestReader(IO).files(ref(write(tmp_path, [entry("a")])))
    assert unpartitioned["partition"].to_list() == ["[]"]


# -- deletes and metrics ---------------------------------------------------------------------------------------------


def bounds(lower: str, upper: str) -> dict[str, Any]:
    return {
        "lower_bounds": [{"key": 1, "value": b"no"}, {"key": 2147483546, "value": lower.encode()}],
        "upper_bounds": [{"key": 2147483546, "value": upper.encode()}, {"key": 1, "value": b"no"}],
    }


def test_referenced_file_is_told_by_equal_bounds(tmp_path: Path) -> None:
    entries = [
        entry("equal", content=1, **bounds("d1", "d1")),
        entry("range", content=1, **bounds("d1", "d2")),
        entry("said", content=1, referenced_data_file="d3", **bounds("d1", "d1")),
        entry("nothing", content=1),
        entry("equality", content=2, equality_ids=[1, 2], **bounds("d1", "d1")),
    ]
    frame = ManifestReader(IO).files(ref(write(tmp_path, entries), content=1))
    assert frame["referenced_data_file"].to_list() == ["d1", None, "d3", None, None]
    assert frame["equality_ids"].to_list() == [None, None, None, None, [1, 2]]


def test_metrics_of_chosen_columns(tmp_path: Path) -> None:
    measured: dict[str, Any] = {
        "value_counts": [{"key": 1, "value": 10}, {"key": 2, "value": 11}],
        "null_value_counts": [{"key": 2, "value": 3}],
        "nan_value_counts": [{"key": 2, "value": 1}],
        "lower_bounds": [{"key": 1, "value": b"\x01"}, {"key": 2, "value": b"\x02"}],
        "upper_bounds": [{"key": 1, "value": b"\x08"}],
        "column_sizes": [{"key": 2, "value": 99}],
    }
    entries = [entry("a", **measured), entry("gone", status=2, **measured), entry("none")]
    frame = read_metrics(IO, [ref(write(tmp_path, entries))], [1, 2])
    assert frame.to_dicts() == [
        {"file_path": "a", "content_offset": None,
         "lower_1": b"\x01", "upper_1": b"\x08", "nulls_1": None, "nans_1": None, "values_1": 10, "bytes_1": None,
         "lower_2": b"\x02", "upper_2": None, "nulls_2": 3, "nans_2": 1, "values_2": 11, "bytes_2": 99},
        {"file_path": "none", "content_offset": None}
        | {f"{kind}_{i}": None for i in (1, 2) for kind in ("lower", "upper", "nulls", "nans", "values", "bytes")},
    ]  # fmt: skip


def test_encrypted_manifest_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [entry("a")])
    with pytest.raises(Unsupported, match="encrypted"):
        ManifestReader(IO).files(ref(path, key_metadata=b"key"))


def test_manifest_shorter_than_its_list_says(lake: Lake) -> None:
    """Cut off between two blocks a manifest is valid Avro; its files must not be lost silently."""
    table: SpecTable = lake.make()
    table.block_size = 1
    table.commit(table.data(rows(1)), table.data(rows(2)))
    path = Path(table.manifests[0].path.removeprefix("file://"))
    data = path.read_bytes()
    sync = data[-16:]
    path.write_bytes(data[: data.rindex(sync, 0, len(data) - 16) + 16])
    with pytest.raises(Damaged) as caught:
        lake.open().scan().to_arrow()
    assert caught.value.facts["file"] == table.manifests[0].path


# -- PyIceberg's manifests -------------------------------------------------------------------------------------------


def test_manifests_by_pyiceberg(lake: Lake) -> None:
    """One block per entry, read here and by PyIceberg itself."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    spec = PartitionSpec(
        PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="name"),
        PartitionField(source_id=1, field_id=1001, transform=IdentityTransform(), name="id"),
    )
    table = lake.catalog.create_table("db.theirs", schema, partition_spec=spec)
    for start in (0, 10, 20):
        data = {"id": list(range(start, start + 10)), "name": ["a", "b", None, "c d/é", "a"] * 2}
        table.append(pa.table(data, schema=pa.schema([("id", pa.int64()), ("name", pa.string())])))
    table.delete("name = 'b'")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    theirs = {
        entry.data_file.file_path: entry
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    ours = FileList.of(table.metadata, table.io, snapshot).frame()
    assert ours.height == len(theirs) > 10
    decoder = PartitionDecoder(table.metadata)
    for row in ours.iter_rows(named=True):
        entry_, file = theirs[row["file_path"]], theirs[row["file_path"]].data_file
        assert row["record_count"] == file.record_count
        assert row["file_size_bytes"] == file.file_size_in_bytes
        assert row["data_sequence_number"] == entry_.sequence_number
        assert row["file_sequence_number"] == entry_.file_sequence_number
        assert row["snapshot_id"] == entry_.snapshot_id
        assert row["sort_order_id"] == file.sort_order_id
        assert row["content"] == int(file.content)
        assert decoder.values(row["spec_id"], row["partition"]) == tuple(file.partition[i] for i in range(2))


def test_every_version_through_a_manifest_list(lake: Lake) -> None:
    """1 → 2 → 3 in one table: old manifests stay and keep what they mean."""
    table = lake.make(version=1)
    first = table.data(rows(1, 2))
    table.commit(first)
    table.upgrade(2)
    second = table.data(rows(3))
    table.commit(second)
    table.upgrade(3)
    third = table.data(rows(4, 5))
    table.commit(third, table.equality_deletes([{"id": 3}]))
    frame = lake.open().files().sort("file_path")
    facts = {row["file_path"]: row for row in frame.iter_rows(named=True)}
    assert [facts[file.path]["data_sequence_number"] for file in (first, second, third)] == [0, 2, 3]
    # The manifests of all three got their row ids with the third commit, in the order of the manifest list.
    assert [facts[file.path]["first_row_id"] for file in (first, second, third)] == [0, 2, 3]
    assert frame["snapshot_id"].to_list() == [1001, 1002, 1003, 1003]
    renumbered = replace(third, path="file:///other", first_row_id=77)
    table.commit(renumbered)
    frame = lake.open().files(content="data")
    assert dict(frame.select("file_path", "first_row_id").iter_rows())["file:///other"] == 77


# -- many manifests together -------------------------------------------------------------------------------------------


def several(folder: Path) -> list[ManifestRef]:
    """Manifests that are decoded together, with all kinds of entries, and some that are not."""
    kept = {"snapshot_id": 5, "sequence_number": 3, "file_sequence_number": 2}
    entries = [
        [entry("a")],
        [entry("b"), entry("gone", status=2, **kept), entry("c", status=0, **kept)],
        [entry("d", status=0, **kept, first_row_id=1000), entry("e")],
        [],
        [entry("f"), entry("g")],
    ]
    refs = []
    for number, some in enumerate(entries):
        (folder / str(number)).mkdir()
        counts = {f"{kind}_files": sum(e["status"] == status for e in some) for status, kind in enumerate(KINDS)}
        facts = {"sequence_number": number, "added_snapshot_id": 70 + number, **counts}
        path = write(folder / str(number), some, version=3)
        refs.append(ref(path, first_row_id=None if number == 4 else number * 100, **facts))
    for name in ("uncounted", "deletes", "other"):
        (folder / name).mkdir()
    refs.append(ref(write(folder / "uncounted", [entry("h")], version=3)))
    refs.append(ref(write(folder / "deletes", [entry("i", content=1)], version=3), content=1, added_files=1))
    refs.append(ref(write(folder / "other", [entry("j")]), added_files=1))
    return refs


KINDS = ("existing", "added", "deleted")


def test_manifests_are_read_together_like_one_by_one(tmp_path: Path) -> None:
    refs = several(tmp_path)
    reader = ManifestReader(IO)
    files = reader.files_of(refs)
    for each in refs:
        assert_frame_equal(reader.files(each), ManifestReader(IO).files(each))
    assert [reader.files(each)["file_path"].to_list() for each in refs] == [
        ["a"], ["b", "c"], ["d", "e"], [], ["f", "g"], ["h"], ["i"], ["j"]
    ]  # fmt: skip
    assert files["first_row_id"].to_list() == [0, 100, 110, 1000, 200, *[None] * 5]
    assert files["data_sequence_number"].to_list() == [0, 1, 3, 3, 2, 4, 4, 7, 7, 7]
    assert files["snapshot_id"].to_list() == [70, 71, 5, 5, 72, 74, 74, 70, 70, 70]
    assert files["manifest_path"].to_list()[:3] == [refs[0].path, refs[1].path, refs[1].path]


def test_few_manifests_are_decoded_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = several(tmp_path)
    expected = ManifestReader(IO).files_of(refs)
    monkeypatch.setattr("pyarctic.iceberg.manifest.reader._JOINED_BYTES", 100)
    assert_frame_equal(ManifestReader(IO).files_of(refs), expected, check_row_order=False)


def test_a_damaged_manifest_among_others_is_named(tmp_path: Path) -> None:
    refs = several(tmp_path)
    path = Path(refs[2].path.removeprefix("file://"))
    schema = manifest_entry(3, [])
    data = encode(schema, [entry("d"), entry("e")], "null", 16000, {})
    path.write_bytes(data.replace(b"parquet", b"parq\xff\xff\xff"))
    with pytest.raises(Damaged, match=refs[2].path):
        ManifestReader(IO).files_of([refs[0], replace(refs[2], length=1), refs[4]])
