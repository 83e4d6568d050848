"""Finding and removing the files of attempts. All files of a task are in one folder, and their names have the task, the
number of the attempt and the id of the job.

Where the folder is known it is listed, which also finds files beside gaps in their numbers. Some layouts put a hash of the
name into the path, and some storages cannot list: there, names are tried in the order in which they are given out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from pyiceberg.io import FileIO
from pyiceberg.table.locations import SimpleLocationProvider, load_location_provider

from pyarctic.iceberg import list_folder, remove_quietly
from pyarctic.optimizing.execute.kernel.inputs import Attempt, JobContext, KeyedAttempt, new_attempt
from pyarctic.optimizing.execute.kernel.row_map import ROW_MAP_SUFFIX
from pyarctic.optimizing.protocol.job import Job
from pyarctic.optimizing.protocol.task import KeyedTask, Task
from pyarctic.tables.format import parse_file_names

_SUFFIXES = (".parquet", "-deletes.parquet", "-deletes.puffin", ROW_MAP_SUFFIX)
_TRIED_EXECUTIONS = 4
"""How often Spark executes a task by default: their files are numbered from different numbers on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFile:
    """A file that an attempt wrote."""

    task: int
    attempt: int
    path: str


def remove_attempt_files(job: Job, io: FileIO, task: Task, number: int, keep: Collection[str] = frozenset()) -> list[str]:
    """Remove everything that an attempt wrote, and return the paths. Nobody may be working on it any more, and no table may
    refer to its files. `keep`: files of its result."""
    paths = [path for path in find_attempt_files(job, io, task, number) if path not in keep]
    remove_quietly(io, paths)
    return paths


def find_attempt_files(job: Job, io: FileIO, task: Task, number: int) -> list[str]:
    """Everything that an attempt wrote and nobody has removed, the last files first."""
    return [file.path for file in find_job_files(job, io, [task], [number]) if file.attempt == number]


def find_job_files(job: Job, io: FileIO, tasks: Sequence[Task], attempts: Sequence[int]) -> list[AttemptFile]:
    """Everything that attempts at these tasks wrote and nobody has removed. `attempts` are the numbers that they may have:
    others are found, too, where folders can be listed."""
    by_folder: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_folder[_folder_of(job, io, task)].append(task)
    found: list[AttemptFile] = []
    for folder, in_folder in by_folder.items():
        listed = list_folder(io, folder) if _has_folders(job, in_folder[0]) else None
        if listed is None:
            found += [file for task in in_folder for number in attempts for file in _try_names(job, io, task, number)]
            continue
        ids = {task.id for task in in_folder}
        files = (parse_attempt_file(job.id, path) for path in listed)
        found += [file for file in files if file is not None and file.task in ids]
    # The last ones first: if removing them is interrupted, no gap hides others from those who try names.
    return sorted(found, key=lambda file: file.path, reverse=True)


def parse_attempt_file(job_id: str, path: str) -> AttemptFile | None:
    """What the name of a file tells; None if it is not of that job."""
    match = re.search(rf"(?:^|-)(\d{{5,}})-(\d+)-{re.escape(job_id)}-\d{{5,}}", path.rpartition("/")[2])
    return AttemptFile(task=int(match[1]), attempt=int(match[2]), path=path) if match else None


def _has_folders(job: Job, task: Task) -> bool:
    """Whether the folder of a file does not depend on its name. That of a keyed table never does."""
    provider = load_location_provider(job.metadata.location, job.metadata.properties)
    return isinstance(task, KeyedTask) or isinstance(provider, SimpleLocationProvider)


def _folder_of(job: Job, io: FileIO, task: Task) -> str:
    return new_attempt(JobContext(job=job, io=io), task).target().new_path("").rpartition("/")[0]


def _try_names(job: Job, io: FileIO, task: Task, number: int) -> Iterator[AttemptFile]:
    for execution in range(_TRIED_EXECUTIONS):
        attempt = new_attempt(JobContext(job=job, io=io), task, number, execution)
        for path in _try_store_names(attempt) if isinstance(attempt, KeyedAttempt) else _try_native_names(attempt):
            yield AttemptFile(task=task.id, attempt=number, path=path)


def _try_native_names(attempt: Attempt) -> Iterator[str]:
    target = attempt.target()
    for suffix in _SUFFIXES:
        yield from _existing(target.io, [lambda suffix=suffix: target.new_path(suffix)])  # type: ignore[misc]


def _try_store_names(attempt: KeyedAttempt) -> Iterator[str]:
    """Files of all kinds share one sequence of numbers, in the order in which they were written."""
    target = attempt.target()
    node_ids = parse_file_names(attempt.task.data, "base")["node_id"].unique()
    kinds = [(target, ".parquet"), (target, ROW_MAP_SUFFIX)]
    kinds += [(replace(target, node_id=node_id, kind="PD"), ".parquet") for node_id in node_ids]
    # Each kind goes through all numbers, as if it had written all files.
    kinds = [(replace(target, names=attempt.new_names()), suffix) for target, suffix in kinds]
    yield from _existing(target.io, [lambda kind=kind: kind[0].new_path(kind[1]) for kind in kinds])  # type: ignore[misc]


def _existing(io: FileIO, next_paths: Sequence[Callable[[], str]]) -> Iterator[str]:
    """The files with the next names that exist, until there are no more."""
    misses = 0
    for _ in count():
        existing = [path for next_path in next_paths if io.new_input(path := next_path()).exists()]
        yield from existing
        misses = 0 if existing else misses + 1
        if misses > 1:  # one number may have been used, and nothing written under it
            return
