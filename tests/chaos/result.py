"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyarctic.ams.store import SqlStore


@dataclass(kw_only=True)
class Result:
    """What happened, and what was wrong."""

    seed: str
    seconds: float
    faults: dict[str, int]
    writes: int = 0
    processes: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    comparisons: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [
            f"seed {self.seed}: {self.seconds:.0f} s, {sum(self.faults.values())} faults, {self.writes} writes, "
            f"{self.comparisons} comparisons of rows",
            *(f"  {name}: {_listed(counts)}" for name, counts in self._counts().items()),
            *(f"  FAILED: {failure}" for failure in self.failures[:30]),
        ]
        return "\n".join(parts)

    def _counts(self) -> dict[str, dict[str, int]]:
        return {"faults": self.faults, "processes": self.processes, "tasks": self.tasks, "commits": self.commits}


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def counted(words: list[str]) -> dict[str, int]:
    return {word: words.count(word) for word in sorted(set(words))}


class OpenedStore:
    """The database of the service, for a moment."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> SqlStore:
        self._store = SqlStore.open(self._url)
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()
