"""The commands over the library itself: a SQLite catalog and a table written by PyIceberg."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli_library import Arctic
from tests.support.cli_orders import BY_CITY, SCHEMA, new_catalog, orders

NAME = "demo.shop.orders"


@dataclass(frozen=True, slots=True)
class Lake:
    """What was made: the folder with its `arctic.yaml`, and the snapshots in order."""

    folder: Path
    snapshots: tuple[int, ...]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("shop.orders", SCHEMA, partition_spec=BY_CITY, properties={"owner": "anna"})
    table.append(orders(1, ["Oslo", "Rome"]))
    table.append(orders(3, ["Oslo", None]))
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "first").commit()
    catalog.create_table("shop.empty", SCHEMA)
    yield Lake(tmp_path, tuple(snapshot.snapshot_id for snapshot in table.snapshots()))
    catalog.close()


def test_listing(arctic: Arctic, lake: Lake) -> None:
    assert arctic("table", "ls", "--format", "name").out.split() == ["demo.shop.empty", NAME]
    assert arctic("table", "ls", "*.orders", "--json").json == [{"name": NAME}]
    assert arctic("catalog", "ls", "--json").json[0]["origin"] == "file"
    assert arctic("catalog", "check", "demo").code == 0
    assert arctic("catalog", "check", "nope").code == 1


def test_show(arctic: Arctic, lake: Lake) -> None:
    shown = arctic("table", "show", NAME, "--json").json
    assert shown["name"] == NAME
    assert shown["current_snapshot_id"] == str(lake.snapshots[-1])
    assert (shown["records"], shown["data_files"], shown["snapshots"]) == (4, 4, 2)
    assert shown["partition_spec"] == ["city"]
    assert shown["schema"][0] == {"id": 1, "name": "id", "type": "long", "required": True, "doc": "the order"}
    for output_format in ("table", "csv", "markdown", "name"):
        for name in (NAME, "demo.shop.empty"):
            ran = arctic("table", "show", name, "--format", output_format)
            assert ran.code == 0, ran.err
            assert name in ran.out


def test_files_and_partitions(arctic: Arctic, lake: Lake) -> None:
    files = arctic("table", "files", NAME, "--json").json
    assert len(files) == 4
    assert {row["content"] for row in files} == {"data"}
    assert {row["snapshot_id"] for row in files} == {str(snapshot) for snapshot in lake.snapshots}
    assert len(arctic("table", "files", NAME, "--ref", "first", "--json").json) == 2
    assert len(arctic("table", "files", NAME, "--snapshot", str(lake.snapshots[0]), "--json").json) == 2
    assert arctic("table", "files", NAME, "--content", "position-deletes", "--json").json == []
    ran = arctic("table", "files", NAME)
    assert ran.code == 0
    assert ran.err.splitlines()[-1].startswith("4 files; ")
    counts = {row["partition"]: row["data_files"] for row in arctic("table", "partitions", NAME, "--json").json}
    assert sorted(counts.values()) == [1, 1, 2]
    assert counts["city=Oslo"] == 2
    for command in ("files", "partitions", "snapshots", "scan"):
        for output_format in ("table", "json", "csv", "markdown", "name"):
            for name in (NAME, "demo.shop.empty"):
                ran = arctic("table", command, name, "--format", output_format)
                assert ran.code == 0, ran.err


def test_snapshots(arctic: Arctic, lake: Lake) -> None:
    second, first = arctic("table", "snapshots", NAME, "--json").json
    assert (first["snapshot_id"], second["snapshot_id"]) == tuple(str(snapshot) for snapshot in lake.snapshots)
    assert second["parent_id"] == first["snapshot_id"]
    assert (first["refs"], second["refs"]) == (["first"], ["main"])
    assert first["summary"]["added-records"] == "2"
    for_people = arctic("table", "snapshots", NAME).out
    assert "ago" in for_people or "just now" in for_people


def test_scan(arctic: Arctic, lake: Lake) -> None:
    rows = arctic("table", "scan", NAME, "--json").json
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4]
    assert rows[0]["ts"] == "2026-01-31T09:30:00Z"
    found = arctic("table", "scan", NAME, "--columns", "id", "--where", "city = 'Oslo' and id > 1", "--json").json
    assert found == [{"id": 3}]
    assert arctic("table", "scan", NAME, "--ref", "first", "--count").out == "2\n"
    assert arctic("table", "scan", NAME, "--as-of", "2000-01-01").code == 1
    assert arctic("table", "scan", NAME, "--as-of", "2999-01-01", "--count", "--json").json == {"count": 4}


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["table", "show", "demo.shop.nope"], 1, "not-found"),
        (["table", "show", "nope.shop.orders"], 1, "not-found"),
        (["table", "show", "orders"], 2, "usage"),
        (["table", "scan", NAME, "--columns", "nope"], 2, "usage"),
        (["table", "scan", NAME, "--where", "id >"], 2, "usage"),
        (["table", "scan", NAME, "--where", "nope = 3"], 2, "usage"),
        (["table", "files", NAME, "--ref", "nope"], 1, "not-found"),
        (["table", "files", NAME, "--snapshot", "1"], 1, "not-found"),
    ],
)
def test_mistakes(arctic: Arctic, lake: Lake, words: list[str], code: int, kind: str) -> None:
    ran = arctic(*words)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"error[{kind}]: ")
    assert "hint: " in ran.err


def test_a_lost_file_is_damage(arctic: Arctic, lake: Lake) -> None:
    for path in (lake.folder / "warehouse").rglob("*.parquet"):
        path.unlink()
    ran = arctic("table", "scan", NAME, "--json")
    assert ran.code == 1
    assert '"code": "damaged"' in ran.err


def test_as_a_process(lake: Lake) -> None:
    command = [sys.executable, "-m", "pyarctic.cli", "table", "scan", NAME, "--count"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=lake.folder)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "4\n", "")


def test_rewrite_manifests(arctic: Arctic, lake: Lake) -> None:
    config = ("--config", str(lake.folder / "arctic.yaml"))
    planned = arctic("table", "rewrite-manifests", NAME, "--dry-run", "--json", *config)
    assert planned.json == {
        "table": NAME,
        "snapshot_id": None,
        "rewritten": len(lake.snapshots),
        "manifests_before": len(lake.snapshots),
        "manifests_after": None,
    }
    assert "dry run" in planned.err
    done = arctic("table", "rewrite-manifests", NAME, *config)
    assert (done.code, "dry run" in done.err) == (0, False)
    again = arctic("table", "rewrite-manifests", NAME, *config)
    assert "nothing to merge" in again.err
    snapshots = arctic("table", "snapshots", NAME, "--json", *config).json
    assert (len(snapshots), snapshots[0]["operation"]) == (len(lake.snapshots) + 1, "replace")
