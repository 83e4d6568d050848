"""What must hold after everything."""

from __future__ import annotations

from collections.abc import Iterator

import pyarctic
from pyarctic.ams.rows import CommitRow, ProcessRow
from pyarctic.ams.store import Store
from pyarctic.iceberg.write import told_snapshot
from tests.chaos import lake
from tests.support.integrity import missing, needed, on_disk, sequence_numbers_differ, untrue_totals
from tests.support.service_checks import (
    all_events,
    broken_stories,
    double_commits,
    strange_outputs,
    unfinished,
    wrong_ends,
)


def check(store: Store) -> list[str]:
    """Everything that is wrong."""
    events = all_events(store)
    failures = [*broken_stories(events)]
    stores = [each for name in lake.NAMES for each in lake.stores_of(name)]
    with store.read() as view:
        failures += [*unfinished(view), *wrong_ends(view, events)]
        failures += [*double_commits(view, stores), *strange_outputs(view, stores)]
        jobs = {row.job_id for row in view.find(ProcessRow)}
        commits = {row.snapshot_id for row in view.find(CommitRow)}
    for each in stores:
        label = ".".join(each.name())
        failures += [f"{label}: {path} is missing" for path in missing(each)]
        failures += [f"{label}: {told}" for told in untrue_totals(each)]
        if not sequence_numbers_differ(each):
            failures.append(f"{label}: sequence numbers are not in order")
    failures += [f"{path} is left over" for path in _left_over(stores, jobs, commits)]
    for name in lake.NAMES:
        failures += [f"{name}: {finding}" for finding in pyarctic.check(name, rows=True).damage]
    return failures


def _left_over(stores: list[object], jobs: set[str], commits: set[int]) -> Iterator[str]:
    """Files of the service's processes that nothing refers to."""
    files: set[str] = set()
    live: set[str] = set()
    for each in stores:
        files |= on_disk(each)  # type: ignore[arg-type]
        live |= needed(each)  # type: ignore[arg-type]
    for path in sorted(files - live):
        if any(job in path for job in jobs) or told_snapshot(path) in commits:
            yield path
