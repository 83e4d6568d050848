"""The short form of the stress test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.session import NAME, Oracle
from tests.services.rest import RestServer
from tests.stress import race
from tests.stress.catalogs import add_rest_to_spark

pytestmark = pytest.mark.jvm
SECONDS = 10


def test_version_2_on_sqlite(oracle: Oracle, tmp_path: Path) -> None:
    result = race.run("v2", tmp_path, oracle.spark, NAME, oracle.catalog.properties, version=2, seconds=SECONDS)
    check(result)


def test_version_3_on_rest(oracle: Oracle, rest_server: RestServer, tmp_path: Path) -> None:
    name, properties = add_rest_to_spark(oracle.spark, rest_server)
    check(race.run("v3", tmp_path, oracle.spark, name, properties, version=3, seconds=SECONDS))


def check(result: race.Result) -> None:
    assert result.faults == [], str(result)
    assert all(told["commits"] for told in result.of_workers.values()), str(result)
