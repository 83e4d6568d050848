"""A fresh PyIceberg catalog of any kind, for tests that must hold on all of them.

The fixture `any_catalog` runs a test on every kind; those that need Java carry the marker `jvm` then. A test for some
kinds names them: `@pytest.mark.parametrize("any_catalog", kinds("sqlite", "rest"), indirect=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

Kind = Literal["sqlite", "postgres", "rest", "hive", "glue"]
KINDS: tuple[Kind, ...] = get_args(Kind)
JVM_KINDS: frozenset[Kind] = frozenset({"rest", "hive"})
# PyIceberg asks again for a taken lock after 2, 4 and 8 seconds, and then gives up.
_IMPATIENT = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.2", "lock-check-retries": "50"}


def kinds(*names: Kind) -> list[object]:
    """Parameters for `any_catalog`, marked as they must be."""
    return [pytest.param(name, marks=[pytest.mark.jvm] if name in JVM_KINDS else []) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshCatalog:
    """A catalog whose namespace exists, is empty, and is no other test's."""

    kind: Kind
    name: str
    properties: Mapping[str, str]
    namespace: str
    catalog: Catalog
    _clients: ExitStack = field(repr=False)

    def client(self, **properties: str) -> Catalog:
        """Another client of the same catalog, as another process would have; `properties` change its own."""
        return self._clients.enter_context(_open(self.name, {**self.properties, **properties}))


@contextmanager
def fresh_catalog(kind: Kind, request: pytest.FixtureRequest, folder: Path) -> Iterator[FreshCatalog]:
    """Open a catalog on the service of this kind, which is started when the first test asks for it."""
    name, namespace = f"{kind}_{uuid4().hex[:12]}", f"ns_{uuid4().hex[:12]}"
    properties = _properties(kind, request, folder)
    with ExitStack() as clients:
        catalog = clients.enter_context(_open(name, properties))
        catalog.create_namespace(namespace)
        yield FreshCatalog(
            kind=kind, name=name, properties=properties, namespace=namespace, catalog=catalog, _clients=clients
        )


def _properties(kind: Kind, request: pytest.FixtureRequest, folder: Path) -> dict[str, str]:
    warehouse = (folder / "warehouse").as_uri()
    match kind:
        case "sqlite":
            return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse}
        case "postgres":
            return {"type": "sql", "uri": request.getfixturevalue("postgres").uri, "warehouse": warehouse}
        case "rest":
            return {"type": "rest", "uri": request.getfixturevalue("rest_server").uri}
        case "hive":
            uri = request.getfixturevalue("metastore").uri
            return {"type": "hive", "uri": uri, "warehouse": warehouse, **_IMPATIENT}
        case "glue":
            return {**request.getfixturevalue("glue_properties"), "warehouse": warehouse}


@contextmanager
def _open(name: str, properties: Mapping[str, str]) -> Iterator[Catalog]:
    # Not above: conftest.py imports this file before it has cleared the way for PyIceberg.
    from pyiceberg.catalog import load_catalog

    with load_catalog(name, **properties) as catalog:
        yield catalog
        # PyIceberg leaves the connections of boto3 to the garbage collector.
        if glue := getattr(catalog, "glue", None):
            glue.close()
