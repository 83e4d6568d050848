"""The way to executors: what they get of the driver, and how they open it.

Objects travel pickled inside a task's code, with the storage's properties in them: no plan and no log of Spark shows them.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyarctic._version import __version__
from pyarctic.errors import ConfigError
from pyarctic.spark.session import runs_here
from pyarctic.spark.shipping import is_remote, ship

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_REMOTE_TASKS_AT_A_TIME = 8
_MOST_OPENED = 8
_opened: dict[bytes, Any] = {}
"""Of this Python worker: what it opened last."""

BatchFunction = Callable[[Iterable["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]


def reach_executors(spark: SparkSession) -> None:
    """Make sure that executors find PyArctic."""
    if is_remote(spark) or not runs_here(str(spark.sparkContext.master)):
        ship(spark)


def slots(spark: SparkSession) -> int:
    """How many tasks run at a time, as far as can be told."""
    return _REMOTE_TASKS_AT_A_TIME if is_remote(spark) else int(spark.sparkContext.defaultParallelism)


def check_version(driver: str) -> None:
    if driver != __version__:
        raise ConfigError(
            f"the executor has PyArctic {__version__}, the driver {driver}",
            hint="Install the driver's version on executors, or none: then they get it from the driver.",
        )


def sent(thing: Any, work: Callable[[Any, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> BatchFunction:
    """A function for `mapInArrow` that opens `thing` on the executor and works with it. `work` is a function of a module."""
    data, module, name, version = pickle.dumps(thing), work.__module__, work.__name__, __version__

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib

        from pyarctic.spark.executors import opened

        thing = opened(data, version)
        yield from getattr(importlib.import_module(module), name)(thing, batches)

    return run


def opened(data: bytes, version: str) -> Any:
    """What the driver sent."""
    check_version(version)
    if data not in _opened:
        while len(_opened) >= _MOST_OPENED:
            del _opened[next(iter(_opened))]
        # Before Polars is loaded: an executor runs as many tasks at a time as it has cores.
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        _opened[data] = pickle.loads(data)  # noqa: S301  # made by the driver
    return _opened[data]
