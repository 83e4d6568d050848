"""`arctic doctor` and `arctic catalog`."""

from __future__ import annotations

import importlib.metadata
import time
from pathlib import Path

import pytest

from pyarctic.cli import checks
from pyarctic.errors import ConfigError
from pyarctic.spark import java
from tests.support.cli_library import Arctic, Catalog, Library

CONFIG = "catalogs:\n  demo: {type: sql, uri: 'postgresql://anna:pw@db/x', warehouse: 's3://lake', s3.secret: abc}\n"


def test_catalog_ls_masks_secrets(arctic: Arctic, library: Library, tmp_path: Path) -> None:
    (tmp_path / "arctic.yaml").write_text(CONFIG, encoding="utf-8")
    library.catalogs = ["demo", "theirs"]
    ours, theirs = arctic("catalog", "ls", "--json").json
    assert ours == {
        "name": "demo",
        "type": "sql",
        "uri": "postgresql://anna:***@db/x",
        "warehouse": "s3://lake",
        "origin": "file",
    }
    assert (theirs["origin"], theirs["uri"]) == ("pyiceberg", None)
    assert arctic("catalog", "ls").err == "2 catalogs\n"


def test_catalog_check(arctic: Arctic, library: Library) -> None:
    assert arctic("catalog", "check").code == 0
    library.catalogs = ["demo", "down", "odd"]
    ran = arctic("catalog", "check", "--json")
    assert ran.code == 1
    assert [row["state"] for row in ran.json] == ["ok", "fault", "fault"]
    assert "pw" not in ran.out
    one = arctic("catalog", "check", "down")
    assert one.code == 1
    assert "✗ fault" in one.out
    assert "is it running?" in one.out


def test_a_catalog_that_hangs_is_a_fault(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CATALOG_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(Catalog, "list_namespaces", lambda _: time.sleep(0.5))
    found = checks.check_catalog("demo")
    assert (found.state, found.detail) == ("fault", "no response within 0 s")


def test_doctor(arctic: Arctic, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    found = java.Java(executable=Path("/opt/java/bin/java"), major=21, origin="PATH")
    monkeypatch.setattr(java, "find_java", lambda: found)
    ran = arctic("doctor", "--json")
    assert ran.code == 0
    assert {row["check"]: row["state"] for row in ran.json} == dict.fromkeys(
        ("python", "pyiceberg", "pyarrow", "polars", "pyspark", "java", "cache", "config", "catalog demo"), "ok"
    )
    for_people = arctic("doctor")
    assert for_people.err == "9 checks; no warnings, no faults\n"
    assert "✓ ok" in for_people.out


def test_doctor_finds_faults(arctic: Arctic, library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_java() -> java.Java:
        raise ConfigError("Spark needs Java 17 or 21; found none", hint="install one")

    def not_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(java, "find_java", no_java)
    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARCTIC_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "arctic.yaml").write_text("catalgos: {}\n", encoding="utf-8")
    ran = arctic("doctor", "--json")
    assert ran.code == 1
    states = {row["check"]: row["state"] for row in ran.json}
    assert states == {
        "python": "ok",
        "pyiceberg": "fault",
        "pyarrow": "fault",
        "polars": "fault",
        "pyspark": "note",
        "java": "note",
        "cache": "fault",
        "config": "fault",
    }
    assert "did you mean 'catalogs'?" in ran.out


def test_python_and_spark_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_python((3, 10, 9)).state == "fault"
    assert checks.check_python((3, 14, 0)).state == "ok"
    for version, state in {"3.5.9": "ok", "4.0.5": "ok", "4.1.4": "ok", "4.10.0": "warn", "3.4.1": "warn"}.items():
        monkeypatch.setattr(importlib.metadata, "version", lambda _, version=version: version)
        assert checks.check_pyspark().state == state


def test_no_catalog_is_worth_a_look(library: Library) -> None:
    library.catalogs = []
    assert [one.state for one in checks.check_catalogs()] == ["warn"]
