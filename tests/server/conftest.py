"""A service without threads of its own, and a server for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient
from pyiceberg.catalog import Catalog

from pyarctic.ams import Ams, ServiceSettings
from pyarctic.ams.store import MemoryStore
from pyarctic.client import Address, Client
from pyarctic.server import HttpServer, Tokens, create_app
from tests.server.requests import TOKEN, Api
from tests.support.fragmented_table import fragmented_table


@pytest.fixture
def ams(lake: Catalog) -> Ams:
    """A service of the catalog `lake`. Tests do the turns of its loops."""
    settings = ServiceSettings(commit_interval=timedelta(0), dead_attempt_grace=timedelta(0))
    return Ams(MemoryStore(), settings)


@pytest.fixture
def table(lake: Catalog) -> str:
    """The name of a table that needs three tasks."""
    made = fragmented_table(lake, "db.orders")
    with made.transaction() as transaction:
        transaction.set_properties({"self-optimizing.minor.trigger.file-count": "2"})
    return "lake.db.orders"


@pytest.fixture
def api(ams: Ams) -> Iterator[Api]:
    """Requests to the application, without a socket."""
    with TestClient(create_app(ams, Tokens.of({"tester": TOKEN}))) as http:
        yield Api(http)


@pytest.fixture
def server(ams: Ams) -> Iterator[HttpServer]:
    """The same on a port."""
    started = HttpServer(create_app(ams, Tokens.of({"tester": TOKEN})), port=0)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def address(server: HttpServer) -> Address:
    return Address(urls=(server.url,), token=TOKEN)


@pytest.fixture
def client(address: Address) -> Iterator[Client]:
    with Client(address) as opened:
        yield opened
