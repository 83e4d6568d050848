"""What attempts leave behind that came to nothing: found by name, because names are numbered, and removed."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.io import FileIO

from pyarctic.iceberg.storage import remove_quietly
from pyarctic.optimizing.kernel.inputs import Attempt, Bench
from pyarctic.optimizing.kernel.rowmap import ROW_MAP_SUFFIX
from pyarctic.optimizing.tasks import Job, Task

_SUFFIXES = (".parquet", "-deletes.parquet", "-deletes.puffin", ROW_MAP_SUFFIX)


def remove_attempt(job: Job, io: FileIO, task: Task, number: int) -> list[str]:
    """Remove whatever an attempt wrote; nobody works on it any more, and no table has its files."""
    found = list(_written(job, io, task, number))
    remove_quietly(io, found)
    return found


def _written(job: Job, io: FileIO, task: Task, number: int) -> Iterator[str]:
    attempt = Attempt(bench=Bench(job=job, io=io), task=task, number=number, listen=lambda _: None)
    target = attempt.target()
    for suffix in _SUFFIXES:
        while io.new_input(path := target.new_path(suffix)).exists():
            yield path
