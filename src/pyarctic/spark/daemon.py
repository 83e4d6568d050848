"""Spark's Python daemon, made fast for many small tasks. Spark runs `python -m pyarctic.spark.daemon pyspark.worker`.

Stock Spark 4.1 spends 120 to 250 ms of every task re-reading the directories of pyspark.zip and spark-core.jar, since
it calls `importlib.invalidate_caches()` and CPython before 3.13 answers that eagerly for zip files. The archives do not
change while a daemon lives, so the call is made empty. Modules that tasks need are imported here, once, before workers
are forked.

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


def _keep(self: zipimport.zipimporter) -> None:
    """Stand-in for `zipimporter.invalidate_caches`."""


def main() -> None:
    if sys.version_info < (3, 13):
        zipimport.zipimporter.invalidate_caches = _keep  # type: ignore[method-assign]
    for module in PRELOAD:
        importlib.import_module(module)
    from pyspark.daemon import manager

    # What was loaded so far stays for ever: out of sight of the collection that Spark asks for after each task.
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
