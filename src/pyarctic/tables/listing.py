"""What tables there are, by name."""

from __future__ import annotations

import fnmatch
import re

from pyarctic.iceberg.catalog import catalog_names, open_catalog, reaching
from pyarctic.tables import layout


def list_tables(pattern: str | None = None) -> list[str]:
    """Full names of the tables whose name matches a glob such as `prod.*.orders*`; of all tables without one."""
    names = []
    endings = {layout.SERVICE_CHANGE_STORE}
    for catalog_name in catalog_names():
        if pattern and not _may_hold(catalog_name, pattern):
            continue
        catalog = open_catalog(catalog_name)
        endings.add(layout.change_store_name("", catalog.properties))
        with reaching(catalog_name):
            pending = list(catalog.list_namespaces())
            while pending:
                namespace = pending.pop()
                names += [".".join((catalog_name, *identifier)) for identifier in catalog.list_tables(namespace)]
                pending += [child for child in catalog.list_namespaces(namespace) if len(child) > len(namespace)]
    # A change store goes with the table beside it.
    known = set(names)
    shown = [name for name in names if not any(name.removesuffix(end) in known for end in endings if name.endswith(end))]
    return sorted({name for name in shown if pattern is None or fnmatch.fnmatchcase(name, pattern)})


def _may_hold(catalog: str, pattern: str) -> bool:
    """Rules catalogs out before they are asked: one that is down must not spoil the listing of another."""
    fixed = re.split(r"[*?\[]", pattern)[0]
    return fixed.startswith(f"{catalog}.") or f"{catalog}.".startswith(fixed)
