"""`arctic init`: the folder works from anywhere, the printed commands work, nothing is overwritten."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_library import Arctic


@pytest.mark.parametrize("folder", [".", "new/lake", "with space & more"])
def test_the_printed_commands_work(arctic: Arctic, tmp_path: Path, folder: str) -> None:
    made = arctic("init", folder, "--json").json
    assert Path(made["config"]).is_file()
    assert Path(made["warehouse"]).is_dir()
    assert Path(made["database"]).is_file()
    program = tmp_path / "bin" / "arctic"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pyarctic.cli "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["sh", "-ec", "\n".join(made["next"])], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-3:] == ["id", "──", "1"]


def test_it_prints_the_next_commands(arctic: Arctic) -> None:
    ran = arctic("init", "lake", "--catalog", "dev")
    assert "  cd lake\n  arctic table create dev.shop.people " in ran.err
    assert max(map(len, ran.err.splitlines())) <= 80
    assert arctic("catalog", "check", "--config", "lake/arctic.yaml").code == 0


def test_the_file_works_from_any_folder(arctic: Arctic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arctic("init", "lake")
    monkeypatch.chdir("/")
    words = ("--config", str(tmp_path / "lake" / "arctic.yaml"))
    assert arctic("table", "create", "demo.a.b", "--column", "id long", *words).code == 0
    assert (tmp_path / "lake" / "warehouse" / "a" / "b").is_dir()


def test_nothing_is_overwritten(arctic: Arctic, tmp_path: Path) -> None:
    (tmp_path / "arctic.yaml").write_text("# mine\n", encoding="utf-8")
    ran = arctic("init")
    assert ran.code == 4
    assert "arctic.yaml exists already" in ran.err
    assert (tmp_path / "arctic.yaml").read_text(encoding="utf-8") == "# mine\n"
    assert arctic("init", "arctic.yaml").code == 2
    assert arctic("init", "x", "--catalog", "a.b").code == 2
    assert not (tmp_path / "x").exists()


def test_what_fails_can_be_repeated(arctic: Arctic, tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text("not SQLite, but long enough to be taken for a file of it" * 40, encoding="utf-8")
    ran = arctic("init")
    assert ran.code == 3
    assert "file is not a database" in ran.err
    assert not (tmp_path / "arctic.yaml").exists()


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("sqlite:///gone/deeper/catalog.db", "the folder gone/deeper does not exist, in "),
        ("sqlite:////nowhere/catalog.db", "the folder /nowhere does not exist\n"),
        ("sqlite:///folder", "folder is a folder"),
        ("sqlite:///file/catalog.db", "file is a file, not a folder"),
    ],
)
def test_sqlite_files_that_cannot_be(arctic: Arctic, tmp_path: Path, uri: str, part: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "arctic.yaml").write_text(f"catalogs: {{demo: {{type: sql, uri: '{uri}'}}}}", encoding="utf-8")
    ran = arctic("table", "ls")
    assert ran.code == 2
    assert part in ran.err
    assert "hint: " in ran.err
    assert "sqlalche" not in ran.err.lower()
