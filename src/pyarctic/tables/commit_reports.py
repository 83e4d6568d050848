"""Telling a management service of commits, so that it looks at the table at once: if `$ARCTIC_URL` is set, by a thread in
the background. A write never waits for it, and never fails because of it: the service looks at tables anyway from time to
time."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from pyarctic.errors import ArcticError
from pyarctic.iceberg.commit import Committed
from pyarctic.logs import get_logger

if TYPE_CHECKING:
    from pyarctic.tables.keyed_table import KeyedTable
    from pyarctic.tables.table import Table

_log = get_logger(__name__)
_QUIET_SECONDS = 60.0
"""A service that does not answer is mentioned once in so long a time."""
_LAST_SECONDS = 2.0
"""How long a program that ends lets its last reports go out."""
_MAX_WAITING = 1000
_KEYED: WeakKeyDictionary[Table, KeyedTable] = WeakKeyDictionary()
"""The tables that change stores belong to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    table: str
    table_uuid: str
    store: Literal["base", "change"]
    snapshot_id: int
    parent_id: int | None
    sequence_number: int


def belongs_to(change_store: Table, table: KeyedTable) -> None:
    """Commits to that store are reported as those of the table."""
    _KEYED[change_store] = table


def report_commit(table: Table, outcome: Committed) -> None:
    """Tell of a commit, if there is a service."""
    if not os.environ.get("ARCTIC_URL") or outcome.snapshot_id is None:
        return
    snapshot = outcome.metadata.snapshot_by_id(outcome.snapshot_id)
    if snapshot is None:
        return
    reported = _KEYED.get(table, table)
    _reporter.put(
        _Report(
            table=reported.name,
            table_uuid=reported.uuid,
            store="base" if reported is table else "change",
            snapshot_id=snapshot.snapshot_id,
            parent_id=snapshot.parent_snapshot_id,
            sequence_number=snapshot.sequence_number or 0,
        )
    )


class _Reporter:
    """Sends reports, one after the other. If there are too many, the oldest are left out: a newer one says more."""

    def __init__(self) -> None:
        self._mentioned_at = -_QUIET_SECONDS
        self._reports: queue.Queue[_Report] = queue.Queue(_MAX_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, report: _Report) -> None:
        with self._lock:
            if self._reports.full():
                self._reports.get_nowait()
                self._reports.task_done()
            self._reports.put_nowait(report)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="arctic-commit-reports", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Let what waits go out, for a moment."""
        deadline = time.monotonic() + _LAST_SECONDS
        while self._reports.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def forget(self) -> None:
        """In a child process: the thread and its reports belong to the parent."""
        self._reports, self._lock, self._thread = queue.Queue(_MAX_WAITING), threading.Lock(), None

    def _run(self) -> None:
        while True:
            report = self._reports.get()
            try:
                self._send(report)
            except Exception as error:  # noqa: BLE001  # a report is a courtesy
                self._mention(report, error)
            finally:
                self._reports.task_done()

    def _send(self, report: _Report) -> None:
        from pyarctic.client import connect

        with connect() as client:
            client.table(report.table).report_commit(
                store=report.store,
                table_uuid=report.table_uuid,
                snapshot_id=report.snapshot_id,
                parent_id=report.parent_id,
                sequence_number=report.sequence_number,
            )

    def _mention(self, report: _Report, error: Exception) -> None:
        if time.monotonic() - self._mentioned_at >= _QUIET_SECONDS:
            self._mentioned_at = time.monotonic()
            reason = str(error) if isinstance(error, ArcticError) else f"{type(error).__name__}: {error}"
            _log.warning("commit_not_reported", table=report.table, snapshot_id=report.snapshot_id, reason=reason)


_reporter = _Reporter()
atexit.register(_reporter.flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reporter.forget)
