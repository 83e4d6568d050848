"""Folders for configuration, caches and spill files. The environment is read at every call."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FILE_NAME = "arctic.yaml"


def _xdg(variable: str, default: str) -> Path:
    """A folder of the XDG base directory specification, which requires that relative values are ignored."""
    value = os.environ.get(variable, "")
    return Path(value) if value and Path(value).is_absolute() else Path.home() / default


def implicit_files() -> tuple[Path, ...]:
    """The default locations of `arctic.yaml`; the first one that exists is used."""
    return (Path(FILE_NAME), _xdg("XDG_CONFIG_HOME", ".config") / "arctic" / FILE_NAME)


def cache_dir() -> Path:
    """The folder for caches: $ARCTIC_CACHE or the XDG cache folder; it may not exist yet."""
    chosen = os.environ.get("ARCTIC_CACHE", "")
    return Path(chosen).expanduser() if chosen else _xdg("XDG_CACHE_HOME", ".cache") / "arctic"


def state_dir(explicit: Path | None = None) -> Path:
    """The folder of the management service: the given one, $ARCTIC_STATE, or in the XDG data folder; it may not exist."""
    chosen = os.environ.get("ARCTIC_STATE", "")
    if explicit is not None:
        return explicit.expanduser()
    return Path(chosen).expanduser() if chosen else _xdg("XDG_DATA_HOME", ".local/share") / "arctic"


def spill_dir() -> Path:
    """The folder for data that does not fit into memory: $ARCTIC_SPILL_DIR, Spark's local folder on executors, else the
    temporary folder."""
    chosen = os.environ.get("ARCTIC_SPILL_DIR", "") or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(chosen).expanduser() if chosen else Path(tempfile.gettempdir())
