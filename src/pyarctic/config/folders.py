"""Folders: where configuration is looked for and where caches go. Reads the environment at every call."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FILE_NAME = "arctic.yaml"


def _xdg(variable: str, default: str) -> Path:
    """A folder of the XDG base directory specification, which says that relative values are to be ignored."""
    value = os.environ.get(variable, "")
    return Path(value) if value and Path(value).is_absolute() else Path.home() / default


def implicit_files() -> tuple[Path, ...]:
    """Where `arctic.yaml` is looked for when nobody named one, first match wins."""
    return (Path(FILE_NAME), _xdg("XDG_CONFIG_HOME", ".config") / "arctic" / FILE_NAME)


def cache_dir() -> Path:
    """The folder for caches; it may not exist yet."""
    chosen = os.environ.get("ARCTIC_CACHE", "")
    return Path(chosen).expanduser() if chosen else _xdg("XDG_CACHE_HOME", ".cache") / "arctic"


def spill_dir() -> Path:
    """The folder for what does not fit into memory: the chosen one, Spark's own on its executors, else the temporary one."""
    chosen = os.environ.get("ARCTIC_SPILL_DIR", "") or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(chosen).expanduser() if chosen else Path(tempfile.gettempdir())
