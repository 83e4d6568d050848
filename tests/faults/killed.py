"""Death at one point of a commit, in this process or really.

    python -m tests.faults.killed FOLDER

commits in FOLDER's lab what it holds as `TABLE.POINT.change`, each in a process that kills itself with SIGKILL at the point
with that number; it prints with which signal each died.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pyarctic.iceberg.commit import Change, CommitStep, ManifestRewrite, Outcome, commit
from tests.faults.lab import Killed, Lab, Point, TrappedCatalog, opened


class Fate:
    """Counts the points a commit comes by; at the chosen one it ends, and from then on nothing can be done any more."""

    def __init__(self, chosen: int | None, end: Callable[[], None] | None = None) -> None:
        self.seen: list[Point] = []
        self._chosen = chosen
        self._end = end

    def trap(self, point: Point) -> None:
        if self.is_dead:
            raise Killed(point)
        self.seen.append(point)
        if self.is_dead:
            if self._end:
                self._end()
            raise Killed(point)

    def listen(self, step: CommitStep) -> None:
        self.trap(("step", step))

    @property
    def is_dead(self) -> bool:
        return self._chosen is not None and len(self.seen) > self._chosen


def points_of(lab: Lab, name: str, change: Change | ManifestRewrite) -> list[Point]:
    """Commit without harm; gives the points it came by."""
    fate = Fate(None)
    with lab.trapped(lambda _: None) as catalog:
        _commit(catalog, name, change, fate)
    return fate.seen


def die(lab: Lab, name: str, change: Change | ManifestRewrite, chosen: int) -> Point:
    """Commit up to a point, as a process that dies there; gives the point."""
    fate = Fate(chosen)
    with lab.trapped(lambda _: None) as catalog:
        try:
            _commit(catalog, name, change, fate)
        except Killed:
            return fate.seen[-1]
    raise AssertionError(f"the commit has no point {chosen}: {fate.seen}")


def _commit(catalog: TrappedCatalog, name: str, change: Change | ManifestRewrite, fate: Fate) -> Outcome:
    table = catalog.load_table(name)
    catalog.trap = fate.trap
    return commit(table, change, listen=fate.listen)


def _commit_and_die(folder: Path, name: str, change: Path, chosen: int) -> None:
    fate = Fate(chosen, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with opened(folder) as lab, lab.trapped(lambda _: None) as catalog:
        _commit(catalog, name, pickle.loads(change.read_bytes()), fate)


def _main(folder: Path) -> None:
    for change in sorted(folder.glob("*.change")):
        name, chosen, _ = change.name.rsplit(".", 2)
        # Imports take most of the time, so they are made once. Nothing was computed yet: Polars has no threads to lose.
        child = os.fork()
        if not child:
            _commit_and_die(folder, name, change, int(chosen))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{name} {os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
