"""Finding and removing the files of attempts. They are found by name, because names are numbered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from pyiceberg.io import FileIO

from pyarctic.iceberg import remove_quietly
from pyarctic.optimizing.execute.kernel.inputs import Attempt, JobContext, KeyedAttempt, new_attempt
from pyarctic.optimizing.execute.kernel.row_map import ROW_MAP_SUFFIX
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.task import Task
from pyarctic.tables.format import parse_file_names

_SUFFIXES = (".parquet", "-deletes.parquet", "-deletes.puffin", ROW_MAP_SUFFIX)


def remove_attempt_files(job: Job, io: FileIO, task: Task, number: int) -> list[str]:
    """Remove everything that an attempt wrote, and return the paths. Nobody may be working on it any more, and no table may
    refer to its files."""
    paths = find_attempt_files(job, io, task, number)
    remove_quietly(io, paths)
    return paths


def find_attempt_files(job: Job, io: FileIO, task: Task, number: int) -> list[str]:
    """Everything that an attempt wrote and nobody has removed."""
    attempt = new_attempt(JobContext(job=job, io=io), task, number)
    return list(_find_store_files(attempt) if isinstance(attempt, KeyedAttempt) else _find_files(attempt))


def _find_files(attempt: Attempt) -> Iterator[str]:
    target = attempt.target()
    for suffix in _SUFFIXES:
        while target.io.new_input(path := target.new_path(suffix)).exists():
            yield path


def _find_store_files(attempt: KeyedAttempt) -> Iterator[str]:
    """Files of all kinds share one sequence of numbers, in the order in which they were written."""
    target = attempt.target()
    node_ids = parse_file_names(attempt.task.data, "base")["node_id"].unique()
    kinds = [(target, ".parquet"), (target, ROW_MAP_SUFFIX)]
    kinds += [(replace(target, node_id=node_id, kind="PD"), ".parquet") for node_id in node_ids]
    # Each kind goes through all numbers, as if it had written all files.
    kinds = [(replace(target, names=attempt.new_names()), suffix) for target, suffix in kinds]
    misses = 0
    for _ in count():
        paths = [target.new_path(suffix) for target, suffix in kinds]
        existing = [path for path in paths if target.io.new_input(path).exists()]
        yield from existing
        misses = 0 if existing else misses + 1
        if misses > 1:  # one number may have been used, and nothing written under it
            return
