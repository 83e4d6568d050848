"""Random histories of keyed tables with rounds of optimizing: after each, Spark reads the merged rows and Iceberg Java reads
Base, and both find what the model says.

`HISTORIES=20 pytest tests/spark/test_keyed_random.py` tries more of them.
"""

from __future__ import annotations

import os
from random import Random

import pytest

import pyarctic.spark as arctic_spark
from tests.models.keyed_histories import play
from tests.models.keyed_table import tuples
from tests.models.optimized_keyed_table import OptimizedKeyedModel
from tests.oracle.compare import share_catalog
from tests.oracle.session import Oracle

pytestmark = pytest.mark.jvm

HISTORIES = int(os.environ.get("HISTORIES", "1"))


class ReadByOthers(OptimizedKeyedModel):
    def __init__(self, oracle: Oracle, random: Random, key: str, spec: str) -> None:
        share_catalog(oracle)
        self._oracle, self._short_name = oracle, f"{oracle.namespace()}.t"
        super().__init__(f"{oracle.name}.{self._short_name}", random, key, spec)

    def check_plain(self) -> None:
        """After every round."""
        super().check_plain()
        java = self._oracle.rows(self._short_name)
        assert tuples([java]) == self.shown([row for _, row in self.base.rows.values()])
        merged = arctic_spark.read(self._oracle.spark, self.name).toArrow()
        assert tuples([merged]) == self.shown(self.expected().values())


@pytest.mark.parametrize(
    ("key", "spec"), [("long", "both"), ("string", "region"), ("composite", "truncate"), ("decimal", "whole")]
)
@pytest.mark.timeout(60 + 120 * HISTORIES)
def test_others_read_what_was_optimized(oracle: Oracle, key: str, spec: str) -> None:
    for seed in range(HISTORIES):
        model = ReadByOthers(oracle, Random(f"{key} {seed}"), key, spec)
        try:
            play(model)
        except BaseException as failure:
            failure.add_note("\n".join([f"history {seed}", *model.log]))
            raise
