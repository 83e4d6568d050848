"""Catalogs by name: those declared by code in this process, then those of the configuration file.

The file is read again for every lookup. It is a few lines long, catalogs are opened rarely, and edits or a changed
working directory take effect at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pyarctic.config.folders import implicit_files
from pyarctic.config.names import check_catalog_name
from pyarctic.errors import ConfigError

if TYPE_CHECKING:
    from pyarctic.config.sections import HttpSection, ServiceSection

_NONE: Mapping[str, Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The content of a configuration file."""

    source: Path | None = None
    """The absolute path of the file; None if there is none."""
    catalogs: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: _NONE)
    """The properties of each catalog by name."""
    service: ServiceSection | None = None
    http: HttpSection | None = None
    """None: there is no file, and the defaults hold."""


@dataclass(slots=True)
class _ProcessState:
    """The mutable state of this package: the chosen file and the declared catalogs."""

    explicit: Path | None = None
    declared: dict[str, Mapping[str, str]] = field(default_factory=dict)


_state = _ProcessState()


def use(path: Path | None) -> None:
    """Read the configuration from this file from now on; None restores the default search."""
    _state.explicit = path


def reset() -> None:
    """Forget the chosen file and all declared catalogs (for tests)."""
    _state.explicit = None
    _state.declared.clear()


def find(path: Path | None = None) -> Path | None:
    """Find the configuration file: given by the caller, by `use`, by $ARCTIC_CONFIG, else in the default locations."""
    variable = os.environ.get("ARCTIC_CONFIG", "")
    explicit_files: tuple[tuple[Path | None, str], ...] = (
        (path, "The file was given explicitly. Correct its path."),
        (_state.explicit, "The file was given explicitly. Correct its path."),
        (Path(variable) if variable else None, "The file is set by $ARCTIC_CONFIG. Correct it, or unset the variable."),
    )
    for candidate, reason in explicit_files:
        if candidate is None:
            continue
        candidate = candidate.expanduser()
        if not candidate.exists():
            raise ConfigError(f"{candidate}: no such configuration file", hint=reason, file=str(candidate))
        return candidate
    return next((candidate for candidate in implicit_files() if candidate.is_file()), None)


def load(path: Path | None = None) -> Config:
    """Read and validate the configuration; without a file it is empty."""
    source = find(path)
    if source is None:
        return Config()
    from pyarctic.config.file import read

    content = read(source)
    frozen = MappingProxyType({name: MappingProxyType(dict(entry)) for name, entry in content.catalogs.items()})
    return Config(source=source.absolute(), catalogs=frozen, service=content.service, http=content.http)


def declare_catalog(name: str, properties: Mapping[str, object]) -> None:
    """Declare a catalog for this process; it takes precedence over the file. Properties that are None are dropped."""
    texts = {key: as_text(value) for key, value in properties.items() if value is not None}
    _state.declared[check_catalog_name(name)] = MappingProxyType(texts)


def catalog_properties(name: str) -> Mapping[str, str] | None:
    """The properties of a catalog, or None if neither this process nor the file declares it."""
    declared = _state.declared.get(name)
    return declared if declared is not None else load().catalogs.get(name)


def catalog_origin(name: str) -> Literal["process", "file"] | None:
    """Where the catalog is declared, or None if neither this process nor the file declares it."""
    if name in _state.declared:
        return "process"
    return "file" if name in load().catalogs else None


def declared_names() -> list[str]:
    """The sorted names of the catalogs declared in this process or in the file."""
    return sorted({*_state.declared, *load().catalogs})


def known_catalogs() -> dict[str, dict[str, str]]:
    """The properties of all declared catalogs, for another process to declare."""
    return {name: dict(catalog_properties(name) or {}) for name in declared_names()}


def as_text(value: object) -> str:
    """Convert a property to the form of PyIceberg: a string, with booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
