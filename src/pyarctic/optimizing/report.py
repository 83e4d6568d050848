"""What a run did, counted; and what it was expected to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pyarctic.optimizing.protocol.tasks import TaskFailure
from pyarctic.units import format_bytes, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """0 to 100, and the parts that are missing."""

    score: float
    small_files: float
    equality_deletes: float
    position_deletes: float

    @classmethod
    def of(cls, parts: dict[str, float]) -> Health:
        return cls(
            score=round(parts["health"], 1),
            small_files=round(parts["small_files_penalty"], 1),
            equality_deletes=round(parts["equality_deletes_penalty"], 1),
            position_deletes=round(parts["position_deletes_penalty"], 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Files of a table, or of a change."""

    data_files: int = 0
    data_bytes: int = 0
    rows: int = 0
    equality_delete_files: int = 0
    position_delete_files: int = 0
    deletion_vectors: int = 0
    change_files: int = 0
    """Of a keyed table: files of changes that are not merged into Base, with so many rows."""
    change_rows: int = 0

    @property
    def delete_files(self) -> int:
        return self.equality_delete_files + self.position_delete_files + self.deletion_vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of `optimize`."""

    table: str
    engine: str
    dry_run: bool
    process_id: str
    kinds: tuple[str, ...]
    snapshot_ids: tuple[int, ...] = ()
    """The commits of the run, in order."""
    tasks_planned: int = 0
    tasks_committed: int = 0
    dropped: tuple[str, ...] = ()
    """Tasks that were done in vain, and why; mostly because others replaced their files meanwhile."""
    failures: tuple[TaskFailure, ...] = ()
    removed: Amounts = field(default_factory=Amounts)
    added: Amounts = field(default_factory=Amounts)
    rows_deleted: int = 0
    """Dead rows that are not there any more."""
    rows_copied: int = 0
    """Rows that were copied without decoding them."""
    files_shared: int = 0
    """Files of inserts that became part of Base as they are."""
    rebased_rows: int = 0
    """Rows that others deleted during the run; their deletes were moved over to the new files."""
    health_before: Health
    health_after: Health
    before: Amounts
    after: Amounts
    predicted: dict[str, int] = field(default_factory=dict)
    held_back: tuple[str, ...] = ()
    """Partitions that have to wait because others change rows in them."""
    left_out: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_task_bytes: int = 0

    @property
    def tasks_dropped(self) -> int:
        return len(self.dropped)

    @property
    def changed(self) -> bool:
        return bool(self.snapshot_ids)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: ids are text, because not every reader of JSON keeps 64 bits."""
        return {
            **asdict(self),
            "snapshot_ids": [str(snapshot_id) for snapshot_id in self.snapshot_ids],
            "failures": [failure.to_json() for failure in self.failures],
            "dropped": list(self.dropped),
            "tasks_dropped": self.tasks_dropped,
            "changed": self.changed,
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __rich__ = __str__

    def _merged(self) -> list[str]:
        if not self.before.change_files:
            return []
        told = [f"  changes      {_change(self.before.change_files, self.after.change_files)} files not merged"]
        if self.files_shared:
            told.append(f"  shared       {format_count(self.files_shared)} files of both stores")
        return told

    def lines(self) -> list[str]:
        """For people."""
        if not self.tasks_planned and not self.changed:
            told = [f"{self.table}: nothing to do, health {self.health_before.score:g}"]
        else:
            did = "would be optimized" if self.dry_run else "optimized" if self.changed else "not changed"
            told = [f"{self.table} {did} ({', '.join(self.kinds) or 'deletes only'}, engine {self.engine})"]
        if self.dry_run:
            told += [f"  expected {name.replace('_', ' ')}: {format_count(value)}" for name, value in self.predicted.items()]
        elif self.changed:
            told += [
                f"  data files   {_change(self.before.data_files, self.after.data_files)}",
                f"  delete files {_change(self.before.delete_files, self.after.delete_files)}",
                *self._merged(),
                f"  data         {format_bytes(self.before.data_bytes)} → {format_bytes(self.after.data_bytes)}",
                f"  health       {self.health_before.score:g} → {self.health_after.score:g}",
                f"  rewrote      {format_bytes(self.removed.data_bytes)} in {self.wall_seconds:.1f} s, "
                f"{self.cpu_seconds:.1f} s CPU",
            ]
        told += [f"  failed: task {failure.task}: {failure.detail}" for failure in self.failures]
        told += [f"  in vain: {reason}" for reason in self.dropped]
        if self.held_back:
            told.append(
                f"  {len(self.held_back)} partitions wait for their writers, such as {self.held_back[0] or 'the table'}"
            )
        if self.left_out:
            told.append(f"  {self.left_out} partitions are left for the next run")
        return told


def _change(before: int, after: int) -> str:
    return f"{format_count(before)} → {format_count(after)}"
