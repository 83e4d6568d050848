"""What each command asks of the library and what it writes."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyarctic.cli.scan import parse_timestamp
from tests.support.cli_library import NAME, SNAPSHOT, Arctic, Library, Table


def test_table_ls(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "ls")
    assert (ran.code, ran.err) == (0, "2 tables\n")
    assert ran.out.splitlines()[0] == "Table"
    assert arctic("table", "ls", "--json").json == [{"name": NAME}, {"name": "demo.shop.people"}]
    assert arctic("table", "ls", "demo.shop.p*", "--format", "name").out == "demo.shop.people\n"


def test_nothing_to_list(arctic: Arctic, library: Library) -> None:
    library.names = []
    assert (arctic("table", "ls").out, arctic("table", "ls").err) == ("", "no tables\n")
    assert arctic("table", "ls", "--json").json == []
    library.catalogs = []
    assert arctic("table", "ls").err == "no tables; no catalog is configured, see `arctic doctor`\n"


def test_table_show(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "show", NAME)
    assert ran.code == 0
    for expected in ("Partitioned by", "day(ts)", "3.0 MiB", "1,200", "ago", "Schema", "owner", "main"):
        assert expected in ran.out
    assert "2026-01-31T09:30:00Z" in arctic("table", "show", NAME, "--absolute").out
    assert arctic("table", "show", NAME, "--json").json == library.table.summary()
    assert arctic("table", "show", NAME, "--format", "name").out == f"{NAME}\n"
    rows = dict(csv.reader(io.StringIO(arctic("table", "show", NAME, "--format", "csv").out)))
    assert rows["schema.0.name"] == "id"
    assert rows["properties.owner"] == "anna"


def test_table_files(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "files", NAME, "--content", "data", "--snapshot", str(SNAPSHOT))
    assert library.table.asked == {"snapshot_id": SNAPSHOT, "ref": None, "content": "data", "store": "base"}
    assert ran.err.splitlines() == [
        "2 more columns with --wide",
        "3 data files; 3.0 MiB under file:///lake/orders/",
    ]
    assert "data/00002.parquet" in ran.out
    assert "file:///" not in ran.out
    row = arctic("table", "files", NAME, "--json").json[0]
    assert row["snapshot_id"] == str(SNAPSHOT)
    assert row["file_size_bytes"] == 1024**2
    assert row["equality_ids"] is None
    assert row["file_path"] == "file:///lake/orders/data/00000.parquet"
    assert row["file_sequence_number"] == 1


def test_people_get_fifty_rows_and_machines_all(arctic: Arctic, library: Library) -> None:
    library.table = Table(files=1234)
    ran = arctic("table", "files", NAME)
    assert len(ran.out.splitlines()) == 2 + 50
    assert ran.err.splitlines()[-1].startswith("50 of 1,234 files; ")
    assert ran.err.endswith("--limit 0 shows all\n")
    assert len(arctic("table", "files", NAME, "--limit", "0").out.splitlines()) == 2 + 1234
    assert len(arctic("table", "files", NAME, "--json").json) == 1234
    limited = arctic("table", "files", NAME, "--json", "--limit", "3")
    assert (len(limited.json), limited.err) == (3, "")


def test_table_partitions(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "partitions", NAME, "--ref", "audit")
    assert library.table.asked == {"snapshot_id": None, "ref": "audit"}
    assert ran.err == "1 partition\n"
    expected = {"partition": "day=2026-01-31", "spec_id": 0, "data_files": 3, "data_bytes": 3 << 20}
    assert arctic("table", "partitions", NAME, "--json").json == [expected]


def test_table_snapshots(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "snapshots", NAME)
    assert "3 min ago" in ran.out
    assert "2026-01-31T09:30:00Z" in arctic("table", "snapshots", NAME, "--absolute").out
    second, first = arctic("table", "snapshots", NAME, "--json").json
    assert first["committed_at"] == "2026-01-31T09:30:00Z"
    assert (first["parent_id"], second["parent_id"]) == (None, str(SNAPSHOT))
    assert first["summary"] == {}


def test_points_in_time_exclude_each_other(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "scan", NAME, "--ref", "a", "--as-of", "2026-01-01")
    assert ran.code == 2
    assert ran.err.splitlines()[0] == "error[usage]: --ref and --as-of cannot be combined"


def test_scan_passes_on_what_was_asked(arctic: Arctic, library: Library) -> None:
    arctic("table", "scan", NAME, "--columns", "id, city", "--where", "id > 3", "--as-of", "2026-01-31T09:30")
    assert library.table.asked == {
        "columns": ["id", "city"],
        "where": "id > 3",
        "snapshot_id": None,
        "ref": None,
        "as_of": datetime(2026, 1, 31, 9, 30, tzinfo=UTC),
        "store": "merged",
    }


def test_scan_writes_rows(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "scan", NAME)
    assert [line.split() for line in ran.out.splitlines()[2:]] == [["1", "Oslo", "true"], ["2", "Rome", "false"], ["3"]]
    assert ran.err == "3 rows\n"
    assert arctic("table", "scan", NAME, "--json").json[2] == {"id": 3, "city": None, "paid": None}
    assert arctic("table", "scan", NAME, "--format", "csv").out == "id,city,paid\n1,Oslo,true\n2,Rome,false\n3,,\n"


def test_scan_counts(arctic: Arctic, library: Library) -> None:
    assert arctic("table", "scan", NAME, "--count").out == "3\n"
    assert arctic("table", "scan", NAME, "--count", "--json").json == {"count": 3}
    assert library.table.batches_read == 0


def test_a_limited_scan_reads_no_further(arctic: Arctic, library: Library) -> None:
    library.table = Table(data=pa.table({"id": list(range(1000))}))
    ran = arctic("table", "scan", NAME, "--limit", "3")
    assert ran.err == "the first 3 rows; --limit 0 shows all\n"
    assert library.table.batches_read == 2
    assert len(arctic("table", "scan", NAME, "--json").json) == 1000


def test_every_type_has_a_json_form(arctic: Arctic, library: Library) -> None:
    there = timezone(timedelta(hours=2))
    columns: dict[str, Any] = {
        "decimal": pa.array([Decimal("1.10")]),
        "float": pa.array([float("nan")]),
        "binary": pa.array([b"\x00\xff"]),
        "date": pa.array([datetime(2026, 1, 31, tzinfo=UTC).date()]),
        "local": pa.array([datetime(2026, 1, 31, 9, 30)], pa.timestamp("us")),  # noqa: DTZ001 - that is the point
        "instant": pa.array([datetime(2026, 1, 31, 11, 30, tzinfo=there)], pa.timestamp("us", tz="UTC")),
        "nanos": pa.array([1], pa.timestamp("ns")),
        "struct": pa.array([{"a": [1, None]}]),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "text": pa.array(["tab\tünï\x1b[31m"]),
    }
    library.table = Table(data=pa.table(columns))
    assert arctic("table", "scan", NAME, "--json").json == [
        {
            "decimal": "1.10",
            "float": "nan",
            "binary": "AP8=",
            "date": "2026-01-31",
            "local": "2026-01-31T09:30:00",
            "instant": "2026-01-31T09:30:00Z",
            "nanos": "1970-01-01T00:00:00.000000001",
            "struct": {"a": [1, None]},
            "map": [["k", 1]],
            "text": "tab\tünï\x1b[31m",
        }
    ]
    shown = arctic("table", "scan", NAME).out
    assert "\x1b" not in shown
    assert "tab\\tünï\\x1b[31m" in shown


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", ""])
def test_bad_instants_are_refused(arctic: Arctic, library: Library, text: str) -> None:
    ran = arctic("table", "scan", NAME, "--as-of", text)
    assert (ran.code, ran.out) == (2, "")
    assert "is not a time" in ran.err


def test_instants() -> None:
    assert parse_timestamp("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    assert parse_timestamp("2026-01-31T09:30:00Z") == datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    assert parse_timestamp("2026-01-31 11:30+02:00") == datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


def test_version(arctic: Arctic) -> None:
    from pyarctic._version import __version__

    assert arctic("version").out == f"{__version__}\n"
    assert arctic("version", "--json").json["version"] == __version__
