"""Catalogs by name in this process: those declared by code, then those of the configuration file.

The file is read again at every question. It is a few lines long, catalogs are opened rarely, and an edit or a changed
working directory counts at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pyarctic.config.folders import implicit_files
from pyarctic.config.names import check_catalog_name
from pyarctic.errors import ConfigError

_NONE: Mapping[str, Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What one configuration file says."""

    source: Path | None = None
    """The file, absolute; None when there is none."""
    catalogs: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: _NONE)
    """Properties of each catalog by its name."""


@dataclass(slots=True)
class _Process:
    """What this process was told; the one mutable thing of the room."""

    explicit: Path | None = None
    declared: dict[str, Mapping[str, str]] = field(default_factory=dict)


_process = _Process()


def use(path: Path | None) -> None:
    """Read the configuration from this file from now on; None goes back to looking for one."""
    _process.explicit = path


def reset() -> None:
    """Forget the chosen file and all declared catalogs (for tests)."""
    _process.explicit = None
    _process.declared.clear()


def find(path: Path | None = None) -> Path | None:
    """The configuration file that counts: named by the caller, by `use`, by $ARCTIC_CONFIG, else looked for."""
    variable = os.environ.get("ARCTIC_CONFIG", "")
    named: tuple[tuple[Path | None, str], ...] = (
        (path, "the file was named explicitly"),
        (_process.explicit, "the file was named explicitly"),
        (Path(variable) if variable else None, "the file is named by $ARCTIC_CONFIG"),
    )
    for candidate, why in named:
        if candidate is None:
            continue
        candidate = candidate.expanduser()
        if not candidate.exists():
            raise ConfigError(f"{candidate}: no such configuration file", hint=why, file=str(candidate))
        return candidate
    return next((candidate for candidate in implicit_files() if candidate.is_file()), None)


def load(path: Path | None = None) -> Config:
    """Read and check the configuration; without any file it is empty."""
    source = find(path)
    if source is None:
        return Config()
    from pyarctic.config.file import read

    catalogs = read(source)
    frozen = MappingProxyType({name: MappingProxyType(dict(entry)) for name, entry in catalogs.items()})
    return Config(source=source.absolute(), catalogs=frozen)


def declare_catalog(name: str, properties: Mapping[str, object]) -> None:
    """Make a catalog known by this name in this process; it wins over the file. Properties that are None are absent."""
    texts = {key: as_text(value) for key, value in properties.items() if value is not None}
    _process.declared[check_catalog_name(name)] = MappingProxyType(texts)


def catalog_properties(name: str) -> Mapping[str, str] | None:
    """The properties of a catalog, or None when neither this process nor the file knows it."""
    declared = _process.declared.get(name)
    return declared if declared is not None else load().catalogs.get(name)


def origin_of(name: str) -> Literal["process", "file"] | None:
    """Who declared the catalog, or None when neither this process nor the file knows it."""
    if name in _process.declared:
        return "process"
    return "file" if name in load().catalogs else None


def declared_names() -> list[str]:
    """Names of the catalogs declared in this process or in the file, sorted."""
    return sorted({*_process.declared, *load().catalogs})


def known_catalogs() -> dict[str, dict[str, str]]:
    """The properties of all of them, for another process to declare."""
    return {name: dict(catalog_properties(name) or {}) for name in declared_names()}


def as_text(value: object) -> str:
    """A property as PyIceberg wants it: a string, booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
