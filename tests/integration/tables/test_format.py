"""What PyArctic creates and writes, looked at by other means, against the mixed-iceberg format point by point."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.errors import Unsupported
from pyarctic.tables import Table, WriteMode, list_tables
from tests.support.store_files import Entry, StoreLook, puffin

SCHEMA = pa.schema([("id", pa.int32()), ("region", pa.string()), ("v", pa.string())])
# Keys, and their nodes of four as a JDK computes them.
NODES = {0: 7, 1: 4, 42: 5, -1: 6}
OFFSET_ID = 2147482645
STATISTICS = {"arctic.merged-sequences.storage": "statistics"}
ODD, ODD_PATH = "a b/ü:~*", "region=a+b%2F%C3%BC%3A%7E*"  # as java.net.URLEncoder writes it


def new_table(**options: Any) -> Table:
    told: dict[str, Any] = {"primary_key": ["id"], **options}
    return pyarctic.create_table("lake.db.t", SCHEMA, **told)


def by_region(**options: Any) -> Table:
    return new_table(primary_key=["region", "id"], partition_by=["region"], **options)


def rows(*ids: int, region: str | None = "r", v: str = "v", **extra: Any) -> pa.Table:
    wanted = [{"id": id_, "region": region, "v": v} | extra for id_ in ids]
    schema = SCHEMA
    for name in extra:
        schema = schema.append(pa.field(name, pa.string()))
    return pa.Table.from_pylist(wanted, schema=schema)


def base(lake: Catalog) -> StoreLook:
    return StoreLook(lake, "db.t")


def change(lake: Catalog) -> StoreLook:
    return StoreLook(lake, "db.t_change_")


def test_properties(lake: Catalog) -> None:
    """§1.3"""
    by_region(properties={"owner": "me", "change.file-index.hash-bucket": "8"})
    both = {
        "owner": "me",
        "change.file-index.hash-bucket": "8",
        "table-format": "MIXED_ICEBERG",
        "mixed-format.primary-key-fields": "region,id",
        "write.metadata.delete-after-commit.enabled": "true",
        "flink.max-continuous-empty-commits": "2147483647",
    }
    own = {
        "base": {
            "mixed-format.table-store": "base",
            "mixed-format.change.identifier": "db.t_change_",
            "table.partition-properties": "{}",
            "arctic.merged-sequences.snapshot-id": "0",
        },
        "change": {"mixed-format.table-store": "change"},
    }
    for store, look in {"base": base(lake), "change": change(lake)}.items():
        assert look.metadata["format-version"] == 2
        made = look.properties.pop("table.create-timestamp")
        assert re.fullmatch(r"\d{13}", made)
        found = {name: value for name, value in look.properties.items() if name != "table.create-timestamp"}
        # PyIceberg adds how it compresses.
        assert {name: value for name, value in found.items() if not name.startswith("write.parquet.")} == both | own[store]


def test_names_of_change_stores(lake: Catalog) -> None:
    """§1.1, §1.4: a catalog may want other names; the base store tells."""
    told = {name: str(value) for name, value in lake.properties.items() if name in ("type", "uri", "warehouse")}
    pyarctic.catalog("lake", **told, **{"mixed-format.table-store.separator": "__"})
    new_table().write(rows(1))
    assert base(lake).properties["mixed-format.change.identifier"] == "db.t__change__"
    assert len(StoreLook(lake, "db.t__change__").entries()) == 1
    assert list_tables() == ["lake.db.t"]
    pyarctic.catalog("lake", **told)
    assert pyarctic.table("lake.db.t").scan().count() == 1


def test_schemas_and_specs_are_equal(lake: Catalog) -> None:
    """§1.5, §9.1"""
    table = by_region()
    for step in range(3):
        some, other = base(lake), change(lake)
        assert some.schema == other.schema
        assert some.metadata["partition-specs"] == other.metadata["partition-specs"]
        assert some.metadata["last-column-id"] == other.metadata["last-column-id"] == 3 + step
        fields = {field["name"]: field for field in some.schema["fields"]}
        assert [fields[name]["required"] for name in ("region", "id", "v")] == [True, True, False]
        assert some.schema["identifier-field-ids"] == sorted(fields[name]["id"] for name in ("region", "id"))
        table.evolve(add={f"more{step}": "long"})
    table.evolve(drop=["more2"])  # back to the schema before: it keeps its number
    assert base(lake).schema == change(lake).schema
    table.set({"owner": "you"})
    assert base(lake).properties["owner"] == change(lake).properties["owner"] == "you"
    table.unset("owner")
    assert "owner" not in base(lake).properties | change(lake).properties


def test_names_and_folders(lake: Catalog) -> None:
    """§2.1, §2.2, §3.3"""
    table = by_region()
    table.write(pa.concat_tables([rows(*NODES, region=ODD), rows(1, 2, region="x")]), mode="upsert")
    entries = change(lake).entries()
    assert [int(entry.name_parts["number"]) for entry in entries] == [*range(1, len(entries) + 1)]
    assert {entry.name_parts["transaction"] for entry in entries} == {"0"}
    assert len({entry.name_parts["operation"] for entry in entries}) == 1
    assert int(entries[0].name_parts["operation"]) < 1 << 63
    assert {entry.path.parent for entry in entries} == {change(lake).location / "data" / p for p in (ODD_PATH, "region=x")}
    for entry in entries:
        assert entry.partition == {"region": ODD if entry.path.parent.name == ODD_PATH else "x"}
    table.write(rows(1, region="x"))
    assert change(lake).entries()[-1].name_parts["number"] == "00001"


def test_nodes(lake: Catalog) -> None:
    """§3"""
    table = new_table()
    table.write(rows(*NODES))
    table.write(rows(*NODES), mode="overwrite")
    for look in (change(lake), base(lake)):
        assert {entry.rows()["id"][0].as_py(): int(entry.name_parts["node"]) for entry in look.entries()} == NODES
        assert {entry.path.parent for entry in look.entries()} == {look.location / "data"}


def test_every_store_has_its_own_buckets(lake: Catalog) -> None:
    """§3.5"""
    table = new_table(properties={"base.file-index.hash-bucket": "1", "change.file-index.hash-bucket": "8"})
    table.write(rows(0, 1, 42, -1))
    table.write(rows(0, 1, 42, -1), mode="overwrite")
    assert {entry.name_parts["node"] for entry in base(lake).entries()} == {"1"}
    assert {entry.name_parts["node"] for entry in change(lake).entries()} == {"15", "8", "9", "14"}


def test_columns_of_change_files(lake: Catalog) -> None:
    """§4.1"""
    table = new_table()
    table.write(rows(1), mode="upsert")
    table.write(rows(1).select(["id"]), mode="delete")
    entries = change(lake).entries()
    assert [entry.kind for entry in entries] == ["ED", "I", "ED"]
    for entry in entries:
        schema = pq.ParquetFile(entry.path).schema_arrow
        assert schema.names == ["id", "region", "v", "_file_offset"]
        assert [int(field.metadata[b"PARQUET:field_id"]) for field in schema] == [1, 2, 3, OFFSET_ID]
        assert schema.field("_file_offset").type == pa.int64()
        assert [field.nullable for field in schema] == [False, True, True, True]
    assert "_file_offset" not in [field["name"] for field in change(lake).schema["fields"]]


CDC = ["INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE", "INSERT", "UPDATE_AFTER"]


@pytest.mark.parametrize(
    ("mode", "data", "expected"),
    [
        ("insert", rows(7, 8, 9), ["I 7 1", "I 8 2", "I 9 3"]),
        ("delete", rows(7, 8), ["ED 7 1", "ED 8 2"]),
        ("upsert", rows(7, 8), ["ED 7 1", "I 7 2", "ED 8 3", "I 8 4"]),
        # The last is an update without a before-image: an insert with an offset of its own.
        (
            "cdc",
            rows(*[7] * 6).append_column("_change_action", [CDC]),
            ["I 7 1", "ED 7 2", "I 7 2", "ED 7 3", "I 7 4", "I 7 5"],
        ),
        (
            "cdc",
            [
                rows(7, _change_action="UPDATE_BEFORE"),
                rows(7, _change_action="UPDATE_AFTER"),
                rows(8, _change_action="DELETE"),
            ],
            ["ED 7 1", "I 7 1", "ED 8 2"],
        ),
    ],
)
def test_offsets(lake: Catalog, mode: WriteMode, data: Any, expected: list[str]) -> None:
    """§4.2: one counter over all files of a write."""
    new_table().write(data, mode=mode)
    found = [
        (offset, entry.kind, id_)
        for entry in change(lake).entries()
        for id_, offset in zip(*(entry.rows()[name].to_pylist() for name in ("id", "_file_offset")), strict=True)
    ]
    assert [f"{kind} {id_} {offset}" for offset, kind, id_ in sorted(found)] == expected


def test_commits_of_changes(lake: Catalog) -> None:
    """§4.3: one append for each write, deletes as data."""
    table = new_table()
    for number, mode in enumerate(["insert", "upsert", "delete"], start=1):
        table.write(rows(1, 2, 3), mode=mode)  # type: ignore[arg-type]
        snapshots = change(lake).snapshots
        assert [snapshot["summary"]["operation"] for snapshot in snapshots] == ["append"] * number
    entries = change(lake).entries()
    assert {(entry.content, entry.manifest_content) for entry in entries} == {(0, 0)}
    assert {entry.kind for entry in entries} == {"I", "ED"}
    assert sum(entry.record_count for entry in entries) == 3 + 6 + 3
    assert base(lake).snapshots == []


def test_transactions(lake: Catalog) -> None:
    """§4.4: begun by an empty append, whose sequence number is in the names of base files."""
    table = new_table()
    table.write(rows(1))
    table.write(rows(2))
    table.write(rows(1, 6), mode="overwrite")
    begun = change(lake).snapshot
    assert begun["summary"]["operation"] == "append"
    assert begun["summary"]["tx.begin.signature"] == ""
    assert "added-data-files" not in begun["summary"]
    assert begun["sequence-number"] == 3
    assert {entry.name_parts["transaction"] for entry in base(lake).entries()} == {"3"}
    assert {entry.kind for entry in base(lake).entries()} == {"B"}
    assert [entry.rows().schema.names for entry in base(lake).entries()] == [SCHEMA.names] * 2
    table.write(rows(6, v="later"), mode="upsert")
    assert sorted(table.scan(["id", "v"]).to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "v": "v"},
        {"id": 6, "v": "later"},
    ]


def test_merged_state_of_overwrites(lake: Catalog) -> None:
    """§5.1: statistics as other engines of the format write them, and values of the maps."""
    table = by_region(properties=STATISTICS)
    table.write(rows(1, region="only changes"))
    table.write(pa.concat_tables([rows(1, region="x"), rows(1, region=ODD)]), mode="overwrite")
    expected = {"region=only+changes": 2, "region=x": 2, ODD_PATH: 2}
    first = _check_merged_state(base(lake), expected)
    table.write(rows(2, region="x"))
    table.write(rows(3, region="x"), mode="overwrite", replace="partitions")
    second = _check_merged_state(base(lake), expected | {"region=x": 4})
    assert second["region=x"] > first["region=x"]
    assert second[ODD_PATH] == first[ODD_PATH]
    table.write(rows(4, region=ODD))
    table.write(rows(5, region=ODD), mode="overwrite", where=f"region = '{ODD}'")
    _check_merged_state(base(lake), expected | {"region=x": 4, ODD_PATH: 6})
    assert sorted((row["region"], row["id"]) for row in table.scan().to_arrow().to_pylist()) == [(ODD, 5), ("x", 3)]
    assert table.scan().count() == 2


def test_merged_state_without_partitions(lake: Catalog) -> None:
    table = new_table(properties=STATISTICS)
    table.write(rows(1))
    table.write(rows(2), mode="overwrite")
    _check_merged_state(base(lake), {"": 2})
    table.write(rows(3))
    table.write(rows().slice(0, 0), mode="overwrite")
    _check_merged_state(base(lake), {"": 4})
    assert table.scan().count() == 0


def _check_merged_state(look: StoreLook, sequences: dict[str, int]) -> dict[str, int]:
    snapshot = look.snapshot
    flags = {"optimized-sequence.exist": "true", "base-optimized-time.exist": "true"}
    assert flags.items() <= snapshot["summary"].items()
    (entry,) = (s for s in look.statistics() if s["snapshot-id"] == snapshot["snapshot-id"])
    path = entry["statistics-path"]
    assert path.startswith(f"{look.metadata['location']}/data/puffin/{snapshot['snapshot-id']}-")
    assert re.fullmatch(r"\d+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.puffin", path.rpartition("/")[2])
    footer, blobs = puffin(path)
    assert list(blobs) == ["optimized-sequence", "base-optimized-time"]
    for told, listed in zip(footer["blobs"], entry["blob-metadata"], strict=True):
        assert "compression-codec" not in told
        facts = {"fields": [], "snapshot-id": snapshot["snapshot-id"], "sequence-number": snapshot["sequence-number"]}
        assert facts | {"type": told["type"]} == {name: told[name] for name in ("type", *facts)}
        assert facts | {"type": told["type"]} == {name: listed[name] for name in ("type", *facts)}
    assert json.loads(blobs["optimized-sequence"]) == sequences
    times: dict[str, int] = json.loads(blobs["base-optimized-time"])
    assert times.keys() == sequences.keys()
    assert all(0 <= snapshot["timestamp-ms"] - at < 600_000 for at in times.values())
    return times


def test_twins_of_a_load_are_deleted_by_position(lake: Catalog) -> None:
    """§5, and no equality deletes anywhere (§9.3)."""
    table = new_table()
    table.write([rows(1, 42, v="first"), rows(1, v="second"), rows(0, 1, v="last")], mode="overwrite")
    data = {entry.path: entry for entry in base(lake).entries() if entry.content == 0}
    (deletes,) = (entry for entry in base(lake).entries() if entry.content == 1)
    assert deletes.manifest_content == 1
    assert deletes.kind == "PD"
    assert deletes.name_parts["transaction"] == "1"
    assert deletes.path.parent == base(lake).location / "data"
    schema = pq.ParquetFile(deletes.path).schema_arrow
    assert {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema} == {
        "file_path": 2147483546,
        "pos": 2147483545,
    }
    found = deletes.rows().to_pylist()
    assert found == sorted(found, key=lambda row: (row["file_path"], row["pos"]))
    dead = [(_of(data, row["file_path"]), row["pos"]) for row in found]
    assert [entry.name_parts["node"] for entry, _ in dead] == [deletes.name_parts["node"]] * 2
    assert [entry.rows()["v"][position].as_py() for entry, position in dead] == ["first", "second"]
    assert table.scan(["id", "v"], where="id = 1").to_arrow().to_pylist() == [{"id": 1, "v": "last"}]


def _of(data: dict[Any, Entry], path: str) -> Entry:
    (found,) = (entry for own, entry in data.items() if path.endswith(str(own)))
    return found


PARTITIONS = [
    (pa.string(), "p", "null", "p=null"),
    (pa.string(), "p", None, "p=null"),
    (pa.string(), "p", "", "p="),
    (pa.string(), "p", "a+b=c&d%", "p=a%2Bb%3Dc%26d%25"),
    (pa.string(), "truncate(2, p)", "ä b", "p_trunc=%C3%A4+"),
    (pa.bool_(), "p", True, "p=true"),
    (pa.int32(), "p", -5, "p=-5"),
    (pa.int64(), "bucket(4, p)", 34, "p_bucket=3"),
    (pa.decimal128(9, 2), "p", Decimal("-1.50"), "p=-1.50"),
    (pa.date32(), "p", date(1969, 12, 31), "p=1969-12-31"),
    (pa.date32(), "month(p)", date(2024, 2, 29), "p_month=2024-02"),
    (pa.date32(), "year(p)", date(2024, 2, 29), "p_year=2024"),
    (pa.timestamp("us"), "p", datetime(2024, 2, 29, 1, 2), "p=2024-02-29T01%3A02%3A00"),  # noqa: DTZ001
    (pa.timestamp("us"), "p", datetime(2024, 2, 29, 1, 2, 3), "p=2024-02-29T01%3A02%3A03"),  # noqa: DTZ001
    (pa.timestamp("us", "UTC"), "p", datetime(1960, 1, 1, 0, 0, 0, 4000), "p=1960-01-01T00%3A00%3A00.004%2B00%3A00"),  # noqa: DTZ001
    (pa.timestamp("us", "UTC"), "hour(p)", datetime(2024, 2, 29, 13), "p_hour=2024-02-29-13"),  # noqa: DTZ001
    (pa.timestamp("us", "UTC"), "day(p)", datetime(2024, 2, 29, 13), "p_day=2024-02-29"),  # noqa: DTZ001
    (pa.time64("us"), "p", 3_723_000_004, "p=01%3A02%3A03.000004"),
    (pa.binary(), "p", b"\xff\xee", "p=%2F%2B4%3D"),
]


@pytest.mark.filterwarnings("ignore::pyarctic.tables.TableAdvice")
@pytest.mark.parametrize(("type_", "by", "value", "path"), PARTITIONS)
def test_partition_paths(lake: Catalog, type_: pa.DataType, by: str, value: Any, path: str) -> None:
    """§2.2, §5.1: the text that Iceberg Java makes of a partition."""
    schema = pa.schema([("id", pa.int32()), ("p", type_)])
    table = pyarctic.create_table("lake.db.t", schema, primary_key=["id"], partition_by=[by])
    data = pa.table([pa.array([1], pa.int32()), pa.array([value], type_)], schema=schema)
    table.write(data)
    table.write(data, mode="overwrite")
    assert {entry.path.parent.name for look in (base(lake), change(lake)) for entry in look.entries()} == {path}
    assert json.loads(base(lake).snapshot["summary"]["arctic.merged-sequences"]) == {path: 2}
    assert json.loads(base(lake).metadata["properties"]["table.partition-properties"])[path]["max-txId"] == "2"
    assert table.scan().to_arrow().equals(data.cast(table.scan().schema))


@pytest.mark.filterwarnings("ignore::pyarctic.tables.TableAdvice")
def test_null_is_not_the_text_null(lake: Catalog) -> None:
    """Their paths are equal; their files are not."""
    table = new_table(partition_by=["region"])
    table.write(pa.concat_tables([rows(1, region=None), rows(1, region="null")]))
    assert sorted(str(entry.partition["region"]) for entry in change(lake).entries()) == ["None", "null"]
    assert len(change(lake).entries()) == 2
    assert table.scan(where="region is null").count() == table.scan(where="region = 'null'").count() == 1
    with pytest.raises(Unsupported, match="only one of them is replaced"):
        table.write(rows(2, region="null"), mode="overwrite", replace="partitions")
    assert table.scan().count() == 2
    table.write(pa.concat_tables([rows(1, region=None), rows(1, region="null")]), mode="overwrite")
    assert table.scan().count() == 2


def test_state_after_a_roll_back(lake: Catalog) -> None:
    """Base gets sequence numbers that its current snapshot does not know of."""
    table = new_table(properties=STATISTICS)
    first = table.write(rows(1), mode="overwrite")
    table.write(rows(2), mode="overwrite")
    assert first is not None
    table.roll_back(first)
    table.write(rows(3), mode="overwrite")
    _check_merged_state(base(lake), {"": 3})
    assert table.scan(["id"]).to_arrow().to_pylist() == [{"id": 3}]


def test_counters_of_rolled_files(lake: Catalog) -> None:
    """§2.1, §2.3: a file that is full is followed by the next one."""
    table = new_table(properties={"write.target-file-size-bytes": "1"})
    table.write([rows(1, v=str(number)) for number in range(3)])
    entries = change(lake).entries()
    assert [int(entry.name_parts["number"]) for entry in entries] == [1, 2, 3]
    offsets = [entry.rows()["_file_offset"].to_pylist() for entry in entries]
    assert all(some[-1] < other[0] for some, other in pairwise(offsets))
    assert [row["v"] for row in table.scan().to_arrow().to_pylist()] == ["2"]
