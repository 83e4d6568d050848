"""How many requests reading and optimizing a table of small files in object storage takes. Moto plays the storage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

import pyarctic
from benchmarks.figures import Figure, console
from pyarctic import config
from tests.services import glue
from tests.services.s3 import Bucket, Request, count_methods, fresh_bucket

FILES = 50
_ROWS = 100
_NAME = "bench_storage.b.t"


def object_storage(scale: float) -> list[Figure]:
    """Requests per input file; the number of files hardly depends on the scale, because it hardly matters."""
    files = max(int(FILES * min(scale, 1)), 10)
    with _bucket() as bucket, console.status(f"reading and optimizing {files} files in object storage"):
        inputs = _fill(files)
        bucket.take_requests()
        rows = pyarctic.table(_NAME).scan().to_arrow().num_rows
        scan = bucket.take_requests()
        report = pyarctic.optimize(_NAME, kind="major", engine="local")
        optimize = bucket.take_requests()
        assert (rows, report.after.data_files) == (files * _ROWS, 1), report
    reads = [request for request in optimize if f"s3://{bucket.name}/{request.key}" in inputs]
    return [
        _figure(f"optimizing {files} small files in object storage: requests for a file that is read", reads, files, 1.2),
        _figure("the same: all requests, those for metadata, outputs and the commit too", optimize, files, 4),
        _figure("scan of them: all requests; each file has a manifest", scan, files, 2.4),
    ]


def _figure(name: str, requests: list[Request], files: int, target: float) -> Figure:
    detail = ", ".join(f"{count} {method}" for method, count in sorted(count_methods(requests).items()))
    return Figure(name=name, measured=len(requests) / files, target=target, unit="a file", detail=detail)


@contextmanager
def _bucket() -> Iterator[Bucket]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with glue.start(folder) as server, fresh_bucket(server["glue.endpoint"]) as bucket:
            uri = f"sqlite:///{folder}/catalog.db"
            catalog = pyarctic.catalog("bench_storage", type="sql", uri=uri, **bucket.properties)
            yield bucket
            catalog.close()
            config.reset()


def _fill(files: int) -> set[str]:
    table = pyarctic.create_table(_NAME, pa.schema([("id", pa.int64()), ("text", pa.string())]))
    for number in range(files):
        ids = np.arange(_ROWS) + number * _ROWS
        table.write(pa.table({"id": ids, "text": [f"text {each % 7}" for each in ids]}), "insert")
    return set(table.refresh().files()["file_path"])
