"""The stores that the suite of the port runs against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyarctic.ams.store import Store
from tests.support.stores import STORES, DatabaseUrls, fresh_store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, database_urls: DatabaseUrls) -> Iterator[Store]:
    """An empty store: the test runs once on every kind there is."""
    with fresh_store(request.param, database_urls) as opened:
        yield opened
