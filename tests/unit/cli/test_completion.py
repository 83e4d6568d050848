"""Completion: commands, options, values, tables of the configured catalogs; silence where something is wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from pyarctic.cli import completion
from pyarctic.cli.app import app
from tests.support.cli_library import Arctic
from tests.support.cli_orders import SCHEMA, new_catalog


def values(*words: str) -> list[str]:
    return [value for value, _ in completion.complete(typer.main.get_command(app), list(words))]


SERVICE_GROUPS = ("process", "task", "optimizer", "events", "db")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tab"], ["table"]),
        (["table", "ex"], ["explain"]),
        (["table", "files", "--fo"], ["--format"]),
        (["table", "files", "--format", "j"], ["json"]),
        (["table", "files", "--format=j"], ["--format=json"]),
        (["table", "files", "--format", "=", "j"], ["json"]),
        (["table", "files", "--format", "="], ["table", "json", "csv", "markdown", "name"]),
        (["table", "files", "--deb"], ["--debug"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["completion", "bash", ""], []),
        (["table", "write", "demo.shop.orders", "x"], [":files"]),
        (["table", "create", "demo.shop.x", "--like", ""], [":files"]),
        (["--config", ""], [":files"]),
        (["table", "unset", "demo.shop.x", "self-optimizing.quo"], ["self-optimizing.quota"]),
        (["table", "set", "demo.shop.x", "self-optimizing.quo"], ["self-optimizing.quota="]),
        (["nonsense", ""], ["init", "serve", "dev", "doctor", "completion", "version", "catalog", "table", *SERVICE_GROUPS]),
    ],
)
def test_words(words: list[str], expected: list[str]) -> None:
    assert values(*words) == expected


def test_tables_part_by_part(arctic: Arctic, tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    catalog.create_namespace("other")
    for name in ("orders", "orders_change_", "people"):
        catalog.create_table(f"shop.{name}", SCHEMA)
    catalog.close()
    assert values("table", "show", "") == ["demo."]
    assert values("catalog", "check", "d") == ["demo"]
    assert sorted(values("table", "show", "demo.")) == ["demo.other.", "demo.shop."]
    assert values("table", "optimize", "demo.shop.people", "demo.shop.") == ["demo.shop.orders", "demo.shop.people"]
    assert values("table", "show", "demo.shop.people", "") == []
    assert values("table", "show", "--format", "json", "demo.shop.p") == ["demo.shop.people"]
    assert values("--config", str(tmp_path / "arctic.yaml"), "table", "show", "de") == ["demo."]
    ran = arctic("__complete", "--", "table", "show", "demo.sh")
    assert (ran.code, ran.out, ran.err) == (0, "demo.shop.\n", "")


def test_it_is_silent_about_errors(arctic: Arctic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arctic.yaml").write_text("catalogs: [", encoding="utf-8")
    assert arctic("__complete", "--", "table", "show", "").out == ""
    (tmp_path / "arctic.yaml").write_text("catalogs: {down: {type: sql, uri: 'sqlite:///gone/x.db'}}", encoding="utf-8")
    ran = arctic("__complete", "--", "table", "show", "down.")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert arctic("__complete").code == 0


def test_it_does_not_wait_for_slow_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: Any) -> Any:
        time.sleep(30)

    monkeypatch.setattr(completion, "CATALOG_SECONDS", 0.1)
    monkeypatch.setattr(completion, "complete_table", hang)
    started = time.monotonic()
    assert values("table", "show", "demo.") == []
    assert time.monotonic() - started < 10


def test_words_and_options_load_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "pyarctic.cli", "__complete", "--", "table", "files", "--f"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in ran.stderr.splitlines()}
    assert not {"pyarrow", "pyiceberg", "polars", "pydantic", "rich", "yaml"} & loaded
    assert ran.stdout.startswith("--format\t")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(arctic: Arctic, shell: str) -> None:
    ran = arctic("completion", shell)
    assert ran.code == 0
    assert "arctic __complete -- " in ran.out


def test_bash_completes(arctic: Arctic, tmp_path: Path) -> None:
    script = arctic("completion", "bash").out
    program = f'arctic() {{ "{sys.executable}" -m pyarctic.cli "$@"; }}'
    ask = 'COMP_WORDS=(arctic table ex); COMP_CWORD=2; _arctic; echo "${COMPREPLY[@]}"'
    ran = subprocess.run(["bash", "-ec", f"{program}\n{script}\n{ask}"], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("explain\n", "")
