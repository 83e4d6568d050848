"""A catalog that hangs holds up its own tables, and nothing else; a catalog that fails in its own way as well."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from sqlite3 import connect
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic import config
from pyarctic.ams import Ams, TableRow, TableState
from pyarctic.ams import service as service_module
from pyarctic.ams.committing import Commits
from pyarctic.ams.store import MemoryStore
from pyarctic.errors import Unavailable
from pyarctic.iceberg.catalog import translate_catalog_errors
from pyarctic.tables import Table, find_tables, open_table
from tests.support.ams import Desk
from tests.support.fragmented_table import fragmented_table
from tests.support.hanging_catalogs import ANSWERING, HANGING, PATIENCE_SECONDS, HangingCatalogs, wait_until, watch

TABLES = 5
Start = Callable[[HangingCatalogs], Ams]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services with these catalogs, and ends them when their catalogs answer."""
    started: list[tuple[Ams, HangingCatalogs]] = []

    def begin(catalogs: HangingCatalogs) -> Ams:
        ams = Ams(MemoryStore(), catalogs=catalogs)
        ams.start()
        started.append((ams, catalogs))
        return ams

    yield begin
    for ams, catalogs in started:
        catalogs.release()
        ams.stop()


def all_of(catalog: str) -> set[str]:
    return {f"{catalog}.db.t{number}" for number in range(TABLES)}


def test_tables_of_others_are_looked_at(start: Start) -> None:
    catalogs = HangingCatalogs()
    ams = start(catalogs)
    watch(ams.core.store, [HANGING], TABLES)
    ams.core.bells.ring("looks")
    threads = ams.core.settings.refresh_threads
    wait_until(lambda: len(catalogs.asked(HANGING)) == threads - 1)
    watch(ams.core.store, [ANSWERING], TABLES)
    ams.core.bells.ring("looks")
    wait_until(lambda: catalogs.asked(ANSWERING) == all_of(ANSWERING))
    assert len(catalogs.asked(HANGING)) == threads - 1


def test_tables_of_others_are_committed_to(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogs = HangingCatalogs()
    uuids = [f"{catalog}{number}" for catalog in (HANGING, ANSWERING) for number in range(TABLES)]

    def commit(_: Commits, uuid: str) -> None:
        with pytest.raises(Unavailable):
            catalogs.open(f"{uuid[:-1]}.db.t{uuid[-1]}")

    monkeypatch.setattr(Commits, "due", lambda _: uuids)
    monkeypatch.setattr(Commits, "commit", commit)
    ams = start(catalogs)
    watch(ams.core.store, [HANGING, ANSWERING], TABLES)
    ams.core.bells.ring("commits")
    wait_until(lambda: catalogs.asked(ANSWERING) == all_of(ANSWERING))


@pytest.mark.parametrize("hangs_listing", [True, False])
def test_tables_of_others_are_discovered(start: Start, hangs_listing: bool) -> None:
    catalogs = HangingCatalogs(TABLES, hangs_listing=hangs_listing)
    ams = start(catalogs)
    wait_until(lambda: catalogs.asked(ANSWERING) == all_of(ANSWERING))
    discovery = ams.crews[0]
    wait_until(lambda: [each.job.catalog for each in discovery.running] == [HANGING])
    next(loop for loop in ams.loops if loop.name == "discover").wake()
    wait_until(lambda: len(catalogs.opened) >= 2 * TABLES)
    assert len(catalogs.asked(HANGING)) == (0 if hangs_listing else 1)


def test_the_service_ends(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_STOP_SECONDS", 0.1)
    catalogs = HangingCatalogs(TABLES)
    ams = start(catalogs)
    wait_until(lambda: bool(catalogs.asked(HANGING)))
    crews = list(ams.crews)
    stopping = threading.Thread(target=ams.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE_SECONDS / 2)
    assert not stopping.is_alive()
    assert any(crew.running for crew in crews)


# ---- catalogs that fail ---------------------------------------------------------------------------------------------------

DEAD: dict[str, dict[str, str]] = {
    "hive": {"type": "hive", "uri": "thrift://127.0.0.1:9"},
    "glue": {
        "type": "glue",
        "glue.endpoint": "http://127.0.0.1:9",
        "glue.region": "eu-west-1",
        "glue.access-key-id": "x",
        "glue.secret-access-key": "y",
    },
}


@pytest.mark.parametrize("kind", list(DEAD))
def test_a_dead_catalog_does_not_stop_discovery(lake: Catalog, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyiceberg.catalog.glue.MAX_RETRIES", 0)
    pyarctic.catalog("a_dead", **DEAD[kind])
    fragmented_table(lake, "db.new")
    found = find_tables()
    assert found.names == ["lake.db.new"]
    assert isinstance(found.failures["a_dead"], Unavailable)
    assert "cannot be reached" in str(found.failures["a_dead"])
    with pytest.raises(Unavailable, match="'a_dead' cannot be reached"):
        open_table("a_dead.db.t")
    desk = Desk()
    desk.discover()
    assert desk.table("lake.db.new").state is TableState.ACTIVE


@pytest.mark.parametrize(
    ("module", "name"),
    [("thrift.Thrift", "TException"), ("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError")],
)
def test_modules_that_are_being_loaded_have_no_errors_yet(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, module, type(sys)(module))
    assert not hasattr(sys.modules[module], name)
    with pytest.raises(Unavailable), translate_catalog_errors("lake"):
        raise ConnectionError("refused")


def test_errors_that_nobody_knows_are_those_of_one_catalog(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarctic.catalog("a_strange", type="in-memory", uri="sqlite:///:memory:")
    fragmented_table(lake, "db.new")
    listed = "pyarctic.tables.listing._list_catalog"

    def fail(catalog: str, patterns: Any) -> list[str]:
        if catalog == "a_strange":
            raise AssertionError("who are you?")
        return [f"{catalog}.db.new"]

    monkeypatch.setattr(listed, fail)
    found = find_tables()
    assert (found.names, list(found.failures)) == (["lake.db.new"], ["a_strange"])
    assert "AssertionError: who are you?" in str(found.failures["a_strange"])
    desk = Desk()
    desk.discover()
    assert desk.table("lake.db.new").state is TableState.ACTIVE


def test_a_table_that_cannot_be_opened_does_not_hide_others(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("db.a", "db.b"):
        fragmented_table(lake, name)

    def fail(name: str) -> Table:
        if name == "lake.db.a":
            raise AssertionError("who are you?")
        return open_table(name)

    monkeypatch.setattr("pyarctic.ams.core.open_table", fail)
    desk = Desk()
    desk.discover()
    with desk.store.read() as view:
        assert [row.name for row in view.find(TableRow)] == ["lake.db.b"]


def test_tables_of_a_catalog_that_was_renamed_are_the_same(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    desk = Desk()
    desk.discover()
    uuid = desk.table("lake.db.t").uuid
    config.reset()
    pyarctic.catalog("sea", type="sql", uri=lake.properties["uri"], warehouse=lake.properties["warehouse"])
    with closing(connect(lake.properties["uri"].removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE iceberg_tables SET catalog_name = 'sea'")
    desk.discover()
    assert (desk.table("sea.db.t").uuid, desk.table("sea.db.t").state) == (uuid, TableState.ACTIVE)


def test_tables_of_a_catalog_that_is_gone_are_gone(lake: Catalog) -> None:
    fragmented_table(lake, "db.t")
    desk = Desk()
    desk.discover()
    config.reset()
    desk.discover()
    assert desk.table("lake.db.t").state is TableState.GONE
