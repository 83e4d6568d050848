"""Every test of the room gets an empty home, an empty working folder and a process that was told nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyarctic import config

WriteConfig = Callable[[str], Path]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder the test works in."""
    for variable in ("ARCTIC_CONFIG", "ARCTIC_CACHE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(work)
    config.reset()
    yield work
    config.reset()


@pytest.fixture
def write_config(alone: Path) -> WriteConfig:
    """Write `arctic.yaml` where the test works."""

    def write(text: str) -> Path:
        path = alone / "arctic.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
