"""What attempts leave behind that came to nothing: found by name, because names are numbered, and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from pyiceberg.io import FileIO

from pyarctic.iceberg import remove_quietly
from pyarctic.optimizing.execute.kernel.inputs import Attempt, JobContext
from pyarctic.optimizing.execute.kernel.row_map import ROW_MAP_SUFFIX
from pyarctic.optimizing.protocol.tasks import Job, Task
from pyarctic.tables.format import StoreTarget, parse_file_names

_SUFFIXES = (".parquet", "-deletes.parquet", "-deletes.puffin", ROW_MAP_SUFFIX)


def remove_attempt_files(job: Job, io: FileIO, task: Task, number: int) -> list[str]:
    """Remove whatever an attempt wrote; nobody works on it any more, and no table has its files."""

    def begun() -> Attempt:
        return Attempt(bench=JobContext(job=job, io=io), task=task, number=number, listen=lambda _: None)

    written = _written if task.keyed is None else _written_to_store
    found = list(written(begun, io))
    remove_quietly(io, found)
    return found


def _written(begun: Callable[[], Attempt], io: FileIO) -> Iterator[str]:
    target = begun().target()
    for suffix in _SUFFIXES:
        while io.new_input(path := target.new_path(suffix)).exists():
            yield path


def _written_to_store(begun: Callable[[], Attempt], io: FileIO) -> Iterator[str]:
    """Files of all kinds are numbered together, in the order in which they were written."""
    attempt = begun()
    place = attempt.target()
    assert isinstance(place, StoreTarget)  # noqa: S101
    nodes = parse_file_names(attempt.task.data, "base")["node_id"].unique()
    kinds = [(place, ".parquet"), (place, ROW_MAP_SUFFIX)]
    kinds += [(replace(place, node_id=node, kind="PD"), ".parquet") for node in nodes]
    # Each goes through the numbers by itself, as if it had written all files.
    lanes = [(replace(target, names=begun().names), suffix) for target, suffix in kinds]
    missed = 0
    for _ in count():
        paths = [target.new_path(suffix) for target, suffix in lanes]
        there = [path for path in paths if io.new_input(path).exists()]
        yield from there
        missed = 0 if there else missed + 1
        if missed > 1:  # one may have been given out, and nothing written under it
            return
