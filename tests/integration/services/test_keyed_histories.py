"""Random histories of keyed tables with optimizing processes, in object storage and in a REST catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import pyarctic
from pyarctic import config
from tests.models.keyed_histories import Process
from tests.models.optimized_keyed_table import OptimizedKeyedModel
from tests.services.catalogs import FreshCatalog, kinds
from tests.services.s3 import fresh_bucket


def play(name: str, seed: int) -> None:
    model = OptimizedKeyedModel(name, Random(seed), "long")
    steps = [model.insert, model.upsert, model.delete, model.cdc, model.overwrite, model.evolve, model.foreign_base]
    for _ in range(2):
        for _ in range(3):
            model.play(model.random.choice(steps))
        Process(model, model.random.choice([0, 2])).run()
    model.check_plain()
    assert not pyarctic.check(name, rows=True).is_damaged


@pytest.fixture
def bucket_catalog(glue_properties: dict[str, str], tmp_path: Path) -> Iterator[str]:
    config.reset()
    with fresh_bucket(glue_properties["glue.endpoint"]) as bucket:
        pyarctic.catalog("cloud", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", **bucket.properties)
        yield "cloud"
    config.reset()


def test_object_storage(bucket_catalog: str) -> None:
    play(f"{bucket_catalog}.n.t", seed=1)


@pytest.mark.parametrize("any_catalog", kinds("rest"), indirect=True)
def test_rest_catalog(any_catalog: FreshCatalog) -> None:
    config.reset()
    pyarctic.catalog(any_catalog.name, **any_catalog.properties)
    play(f"{any_catalog.name}.{any_catalog.namespace}.t", seed=3)
    config.reset()
