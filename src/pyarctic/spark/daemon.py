"""A Python daemon for Spark that is fast for many small tasks. Spark runs `python -m pyarctic.spark.daemon pyspark.worker`.

Stock Spark 4.1 spends 120 to 250 ms of every task re-reading the directories of pyspark.zip and spark-core.jar, because
it calls `importlib.invalidate_caches()`, which CPython before 3.13 does eagerly for zip files. The archives do not
change during the lifetime of a daemon, so the call is replaced by a no-op. Modules that tasks need are imported here
once, before workers are forked.

Never import Polars here: its thread pool does not survive a fork, and the worker would hang.
"""

from __future__ import annotations

import gc
import importlib
import sys
import zipimport

PRELOAD = (
    "pyarrow.parquet",
    "pyarrow.dataset",
    "pyarrow.compute",
    "pyiceberg.table",
    "pyiceberg.io.pyarrow",
)


def _keep_caches(self: zipimport.zipimporter) -> None:
    """A no-op in place of `zipimporter.invalidate_caches`."""


def main() -> None:
    if sys.version_info < (3, 13):
        zipimport.zipimporter.invalidate_caches = _keep_caches  # type: ignore[method-assign]
    for module in PRELOAD:
        importlib.import_module(module)
    from pyspark.daemon import manager

    # Objects loaded so far are permanent: exclude them from the garbage collection that Spark runs after each task.
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
