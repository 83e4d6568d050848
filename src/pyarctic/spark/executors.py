"""Send objects and code to executors.

Objects are pickled into the closure of a task, including storage properties: they do not appear in plans or logs of Spark.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyarctic._version import __version__
from pyarctic.errors import ConfigError
from pyarctic.spark.sessions import uses_this_python
from pyarctic.spark.shipping import is_remote, ship

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_NO_LIMIT = 1 << 31
_REMOTE_TASK_SLOTS = 8
_MAX_OPEN_PAYLOADS = 8
_open_payloads: dict[bytes, Any] = {}
"""The objects that this Python worker opened last, by their pickled form."""

BatchFunction = Callable[[Iterable["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]


def prepare_executors(spark: SparkSession) -> None:
    """Make sure that executors can import PyArctic."""
    if is_remote(spark) or not uses_this_python(str(spark.sparkContext.master)):
        ship(spark)


def task_slots(spark: SparkSession) -> int:
    """How many tasks run concurrently, as far as it is known."""
    return _REMOTE_TASK_SLOTS if is_remote(spark) else int(spark.sparkContext.defaultParallelism)


def room_for_tasks(spark: SparkSession) -> int:
    """How many tasks to bring: as many as run concurrently; with dynamic allocation twice as many, up to what its executors
    may come to, because Spark starts executors only for tasks that wait."""
    slots = task_slots(spark)
    conf = spark.conf
    if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() != "true":
        return slots
    most = int(conf.get("spark.dynamicAllocation.maxExecutors", str(_NO_LIMIT)) or _NO_LIMIT)
    cores = int(conf.get("spark.executor.cores", "1") or 1)
    return min(2 * slots, max(most * cores, slots))


def check_version(driver: str) -> None:
    if driver != __version__:
        raise ConfigError(
            f"the executor has PyArctic {__version__}, the driver {driver}",
            hint="Install the driver's version on the executors, or none: then they get it from the driver.",
        )


def executor_function(
    payload: Any, work: Callable[[Any, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> BatchFunction:
    """A function for `mapInArrow` that opens `payload` on the executor and passes it to `work`, a module-level function."""
    data, module, name, version = pickle.dumps(payload), work.__module__, work.__name__, __version__

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib

        from pyarctic.spark.executors import open_payload

        payload = open_payload(data, version)
        yield from getattr(importlib.import_module(module), name)(payload, batches)

    return run


def open_payload(data: bytes, version: str) -> Any:
    """Unpickle what the driver sent, once for each Python worker."""
    check_version(version)
    if data not in _open_payloads:
        while len(_open_payloads) >= _MAX_OPEN_PAYLOADS:
            del _open_payloads[next(iter(_open_payloads))]
        # Before Polars is imported: an executor runs as many concurrent tasks as it has cores.
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        _open_payloads[data] = pickle.loads(data)  # noqa: S301  # pickled by the driver
    return _open_payloads[data]
