"""The stores that the suite of the port runs against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyarctic.ams.store import MemoryStore, SqlStore, Store

STORES = ("memory", "sqlite")


@contextmanager
def fresh_store(kind: str, folder: Path) -> Iterator[Store]:
    """An empty store of a kind."""
    store: Store = MemoryStore() if kind == "memory" else SqlStore.open(f"sqlite:///{folder}/service.db")
    try:
        yield store
    finally:
        store.close()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store: the test runs once on every kind there is."""
    with fresh_store(request.param, tmp_path) as opened:
        yield opened
