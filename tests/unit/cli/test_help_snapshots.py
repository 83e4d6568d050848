"""The help of every command, as it is in tests/snapshots/help."""

from __future__ import annotations

import pytest

from tests.support import snapshots
from tests.support.cli_library import Arctic
from tests.unit.cli.test_cli_surface import commands

PATHS = [path for path, _ in commands()]


@pytest.mark.parametrize("path", PATHS)
def test_help(arctic: Arctic, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = arctic(*path.split(), "--help")
    assert (ran.code, ran.err) == (0, "")
    snapshots.compare(f"help/{path.replace(' ', '-') or 'arctic'}", ran.out)


def test_no_snapshot_is_left_over() -> None:
    names = {f"{path.replace(' ', '-') or 'arctic'}.txt" for path in PATHS}
    assert {path.name for path in (snapshots.FOLDER / "help").iterdir()} == names
