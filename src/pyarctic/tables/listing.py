"""Finding tables by glob, over all configured catalogs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pyiceberg.catalog import Catalog

from pyarctic.errors import ArcticError, NotFound, Unavailable, UsageError
from pyarctic.iceberg.catalog import catalog_names, open_catalog, translate_catalog_errors
from pyarctic.tables.format.store_names import SERVICE_CHANGE_STORE, change_store_name

_WILDCARD = re.compile(r"[*?\[]")
_MAX_SIMILAR = 3
_SIMILAR = 0.85
"""Names of tables have their catalog in common, and often their database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTables:
    """The tables that match some patterns."""

    names: list[str]
    """Sorted, without change stores of keyed tables."""
    failures: Mapping[str, ArcticError] = field(default_factory=dict)
    """Catalog → why it could not be listed."""


def list_tables(pattern: str | Sequence[str] | None = None) -> list[str]:
    """The full names of all tables, or of those that match a glob such as `prod.*.orders*`, or one of several. Raises
    `NotFound` if a name without wildcards does not exist, and the error of the first catalog that cannot be listed."""
    found = find_tables(pattern)
    for error in found.failures.values():
        raise error
    return found.names


def find_tables(pattern: str | Sequence[str] | None = None) -> FoundTables:
    """The same, but catalogs that cannot be listed do not prevent the listing of others."""
    patterns = _parse_patterns(pattern)
    names: list[str] = []
    failures: dict[str, ArcticError] = {}
    for catalog in catalog_names():
        try:
            names += find_tables_in(catalog, patterns)
        except ArcticError as error:
            failures[catalog] = error
    for each in patterns:
        if not _WILDCARD.search(each) and each not in names and each.split(".")[0] not in failures:
            raise _no_such_table(each)
    return FoundTables(names=sorted(names), failures=failures)


def find_tables_in(catalog: str, pattern: str | Sequence[str] | None = None) -> list[str]:
    """Those of one catalog. Raises an ArcticError if it cannot be listed; that a name does not exist is none."""
    patterns = [each for each in _parse_patterns(pattern) if _may_match(f"{catalog}.", each)]
    if not patterns:
        return []
    try:
        names = _list_catalog(catalog, patterns)
    except ArcticError:
        raise
    except Exception as cause:  # of a library that the catalog uses: others go on
        raise Unavailable(
            f"catalog {catalog!r} cannot be listed: {type(cause).__name__}: {cause}",
            hint="`arctic catalog check` tries again.",
            catalog=catalog,
        ) from cause
    return sorted(name for name in names if any(fnmatch.fnmatchcase(name, each) for each in patterns))


def _parse_patterns(pattern: str | Sequence[str] | None) -> list[str]:
    patterns: list[Any] = ["*"] if pattern is None else [pattern] if isinstance(pattern, str) else list(pattern)
    for each in patterns:
        if not isinstance(each, str) or not each:
            raise UsageError(f"a pattern is a text such as 'demo.*.orders', not {each!r}")
    return list(dict.fromkeys(patterns))


def _may_match(prefix: str, pattern: str) -> bool:
    """Whether a pattern may match names that begin like this. Catalogs and databases that cannot have a match are not asked:
    one that is down must not prevent the listing of another."""
    fixed = _WILDCARD.split(pattern)[0]
    return fixed.startswith(prefix) or prefix.startswith(fixed)


def _list_catalog(name: str, patterns: Sequence[str]) -> list[str]:
    """The tables of the databases that may have matches, without change stores whose table is listed."""
    catalog = open_catalog(name)
    with translate_catalog_errors(name):
        names = {
            ".".join((name, *identifier))
            for namespace in _namespaces(catalog, name, patterns)
            for identifier in catalog.list_tables(namespace)
        }
    endings = {SERVICE_CHANGE_STORE, change_store_name("", catalog.properties)}
    return [each for each in names if not any(each.endswith(end) and each.removesuffix(end) in names for end in endings)]


def _namespaces(catalog: Catalog, name: str, patterns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    pending = list(catalog.list_namespaces())
    while pending:
        namespace = pending.pop()
        if not any(_may_match(f"{'.'.join((name, *namespace))}.", pattern) for pattern in patterns):
            continue
        yield namespace
        pending += [child for child in catalog.list_namespaces(namespace) if len(child) > len(namespace)]


def _no_such_table(name: str) -> ArcticError:
    """The error for a name without wildcards that matches nothing, with names like it."""
    catalog, *rest = name.split(".")
    catalogs = catalog_names()
    if catalog not in catalogs:
        similar = get_close_matches(catalog, catalogs, n=_MAX_SIMILAR)
        return NotFound(
            f"catalog {catalog!r} is not configured",
            hint=f"Did you mean {' or '.join(similar)}?" if similar else f"Configured: {', '.join(catalogs) or 'none'}.",
            catalog=catalog,
        )
    if len(rest) < 2:
        return NotFound(
            f"{name} is not a table",
            hint=f"'{name}.*' matches all tables in it; a name has the form catalog.database.table.",
        )
    similar = get_close_matches(name, _list_catalog(catalog, ["*"]), n=_MAX_SIMILAR, cutoff=_SIMILAR)
    return NotFound(
        f"table {name} does not exist",
        hint=f"Did you mean {' or '.join(similar)}?"
        if similar
        else f"`arctic table ls '{catalog}.*'` lists the existing tables.",
        table=name,
    )
