"""The short form of the chaos run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyarctic import config
from pyarctic.ams.store import SqlStore
from tests.chaos.run import Run, Server
from tests.support.stores import empty

LENGTHS = {None: (25, 15), "postgres": (12, 8), "mariadb": (12, 8)}
"""Seconds and faults, by the server of the database."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", LENGTHS, ids=lambda server: server or "sqlite")
def test_whatever_happens_nothing_is_lost_done_twice_or_left_over(
    tmp_path: Path, request: pytest.FixtureRequest, server: str | None
) -> None:
    """With a server there are two services, and it is restarted."""
    config.reset()
    started: Server | None = None if server is None else request.getfixturevalue(server)
    if started is not None:
        SqlStore.open(started.uri).close()
        empty(started.uri)
    seconds, faults = LENGTHS[server]
    try:
        result = Run(tmp_path, "short", seconds=seconds, faults=faults, server=started).run()
    finally:
        config.reset()
    assert result.failures == [], f"{result}\nin {tmp_path}"
    assert result.comparisons
