"""Pages of lists, on both databases: no row is missed or shown twice, also among those that are equal in the order."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from pyarctic.ams import OptimizerRow, OptimizerState
from pyarctic.ams.store import MemoryStore, SqlStore, Store
from pyarctic.server.paging import Order, Window, read_page
from tests.server.requests import Api, expect

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["memory", "sqlite"])
def empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: Store = MemoryStore() if request.param == "memory" else SqlStore.open(f"sqlite:///{tmp_path}/arctic.db")
    yield store
    store.close()


def _row(number: int, second: int) -> OptimizerRow:
    at = _BEGIN + timedelta(seconds=second)
    common: dict[str, Any] = {"parallelism": 1, "version": "", "token_hash": "", "heartbeat_seconds": 10.0}
    state = OptimizerState.ACTIVE if number % 3 else OptimizerState.LOST
    row_id = f"{(number * 37) % 100:02}"
    return OptimizerRow(id=row_id, group="g", state=state, host=str(number % 2), registered_at=at, heard_at=at, **common)


def _all_pages(read: Callable[[Window], tuple[Any, str | None]], limit: int) -> list[OptimizerRow]:
    rows, cursor = [], None
    while True:
        page, cursor = read(Window(cursor, limit))
        assert len(page) <= limit
        rows += page
        if cursor is None:
            return rows


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=25)
@hypothesis.given(
    seconds=st.lists(st.integers(0, 3), max_size=30),
    limit=st.integers(1, 7),
    descending=st.booleans(),
    filtered=st.booleans(),
)
def test_pages_have_every_row_once(
    empty_store: Store, seconds: list[int], limit: int, descending: bool, filtered: bool
) -> None:
    rows = [_row(number, second) for number, second in enumerate(seconds)]
    with empty_store.begin() as transaction:
        transaction.delete(OptimizerRow)
        transaction.insert(*rows)
    expected = sorted(rows, key=lambda row: (row.registered_at, row.id), reverse=descending)
    if filtered:
        expected = [row for row in expected if row.state is OptimizerState.ACTIVE and row.host == "0"]
    where = {"state": OptimizerState.ACTIVE} if filtered else {}
    with empty_store.read() as view:
        shown = _all_pages(
            lambda window: read_page(
                view,
                OptimizerRow,
                Order("registered_at", descending),
                window,
                lambda row: not filtered or row.host == "0",
                **where,
            ),
            limit,
        )
    assert shown == expected


MADE_BY_HAND: tuple[object, ...] = (
    [{"a": 1}],
    [10**30, "x"],
    ["2020-01-01T00:00:00", "x"],
    ["2020-01-01T00:00:00+00:00", {"a": 1}],
    ["2020-01-01T00:00:00+00:00"],
    [None],
    [[1], [1]],
    [True, True],
    ["\ud800", "\ud800"],
    [],
    7,
)


@pytest.mark.parametrize("path", ["/processes", "/tasks", "/optimizers"])
@pytest.mark.parametrize("content", MADE_BY_HAND, ids=repr)
def test_cursors_that_no_list_has_given_are_refused(api: Api, path: str, content: object) -> None:
    text = json.dumps(content).encode()
    for data in (text, b"[" * 20_000, b"\xff"):
        cursor = base64.urlsafe_b64encode(data).decode().rstrip("=")
        assert expect(api.call("GET", path, params={"cursor": cursor}), 400)["code"] == "usage"
