"""The report of an optimizing process: what it did, and what it was expected to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import polars as pl

from pyarctic._html import html_page, html_text
from pyarctic.iceberg.manifest import EQUALITY_DELETES, FILE_SCHEMA, IS_VECTOR, PartitionDecoder
from pyarctic.iceberg.write import NewFile
from pyarctic.optimizing.commit.summary import CommitSummary
from pyarctic.optimizing.evaluate.evaluation import Evaluation
from pyarctic.optimizing.evaluate.health import Health
from pyarctic.optimizing.observe.observation import KeyedObservation
from pyarctic.optimizing.plan.plan import Plan, WaitingChanges
from pyarctic.optimizing.protocol.result import TaskFailure
from pyarctic.optimizing.protocol.task import OPTIMIZING_KINDS, KeyedTask, Task
from pyarctic.tables.read import IS_FOREIGN
from pyarctic.units import format_bytes, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The files of a table, or of a change to it."""

    data_files: int = 0
    data_bytes: int = 0
    rows: int = 0
    equality_delete_files: int = 0
    position_delete_files: int = 0
    deletion_vectors: int = 0
    change_files: int = 0
    """Files of a keyed table's changes that are not merged."""
    change_rows: int = 0

    @property
    def delete_files(self) -> int:
        """Delete files of all kinds."""
        return self.equality_delete_files + self.position_delete_files + self.deletion_vectors

    @classmethod
    def of_table(cls, evaluation: Evaluation) -> Self:
        """All files of a table."""
        files, partitions = evaluation.files, evaluation.partitions
        matches = evaluation.observation.matches
        is_keyed = isinstance(evaluation.observation, KeyedObservation)
        return cls(
            **_count_data(files),
            **_count_deletes(pl.concat([*matches.by_kind.values(), matches.vectors])),
            change_files=int(partitions["change_files"].sum()) if is_keyed else 0,
            change_rows=int(partitions["change_records"].sum()) if is_keyed else 0,
        )

    @classmethod
    def of_removed(cls, merges: Sequence[Task], deletes: pl.DataFrame) -> Self:
        """The files that merges have replaced, and delete files that were removed."""
        merged_changes = _concat_files(task.changes for task in merges if isinstance(task, KeyedTask))
        return cls(
            **_count_data(_concat_files(task.replaced for task in merges)),
            **_count_deletes(deletes),
            change_files=merged_changes.height,
            change_rows=int(merged_changes["record_count"].sum()),
        )

    @classmethod
    def of_added(cls, files: Sequence[NewFile]) -> Self:
        """New files."""
        data = [file for file in files if file.content == 0]
        return cls(
            data_files=len(data),
            data_bytes=sum(file.file_size_bytes for file in data),
            rows=sum(file.record_count for file in data),
            position_delete_files=sum(file.content == 1 and not file.is_vector for file in files),
            deletion_vectors=sum(file.is_vector for file in files),
        )


def _concat_files(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([pl.DataFrame(schema=FILE_SCHEMA), *frames]).unique("file_path")


def _count_data(files: pl.DataFrame) -> dict[str, int]:
    return {
        "data_files": files.height,
        "data_bytes": int(files["file_size_bytes"].sum()),
        "rows": int(files["record_count"].sum()),
    }


def _count_deletes(deletes: pl.DataFrame) -> dict[str, int]:
    is_equality = pl.col("content") == EQUALITY_DELETES
    counts = deletes.select(
        equality_delete_files=is_equality.sum(),
        position_delete_files=(~is_equality & ~IS_VECTOR).sum(),
        deletion_vectors=IS_VECTOR.sum(),
    )
    return {name: int(value) for name, value in counts.row(0, named=True).items()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """The outcome of `optimize`."""

    table: str
    engine: str
    dry_run: bool
    process_id: str
    kinds: tuple[str, ...]
    snapshot_ids: tuple[int, ...] = ()
    """The commits of the process, in order."""
    rolled_back: tuple[int, ...] = ()
    """Commits that the table has lost again: the catalog, or somebody, rolled them back in favour of another writer."""
    tasks_planned: int = 0
    tasks_committed: int = 0
    dropped: tuple[str, ...] = ()
    """Tasks whose results were discarded, and why; mostly because others replaced their files meanwhile."""
    failures: tuple[TaskFailure, ...] = ()
    removed: Amounts = field(default_factory=Amounts)
    added: Amounts = field(default_factory=Amounts)
    rows_deleted: int = 0
    """Deleted rows that were physically removed."""
    rows_copied: int = 0
    """Rows that were copied without decoding them."""
    files_shared: int = 0
    """Insert files that became part of the base store as they are."""
    rebased_rows: int = 0
    """Rows that others deleted during the process; their deletes were moved over to the new files."""
    health_before: Health
    health_after: Health
    before: Amounts
    after: Amounts
    predicted: dict[str, int] = field(default_factory=dict)
    held_back: tuple[str, ...] = ()
    """Partitions that have to wait because others change rows in them."""
    left_out: int = 0
    """The number of partitions that are left for the next process."""
    foreign_files: int = 0
    """The number of files that another engine had put into the base store of a keyed table."""
    change_manifests_merged: int = 0
    """The number of manifests of the change store of a keyed table that were merged into others."""
    leftovers_removed: int = 0
    """The number of files that earlier, killed processes had left, and that were removed."""
    waiting_changes: WaitingChanges | None = None
    """Changes of a keyed table that could not be merged yet."""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_task_bytes: int = 0

    @classmethod
    def empty(cls, *, table: str, engine: str, dry_run: bool, process_id: str) -> Self:
        """The report of a process over a table without data."""
        return cls(
            table=table,
            engine=engine,
            dry_run=dry_run,
            process_id=process_id,
            kinds=(),
            health_before=Health.perfect(),
            health_after=Health.perfect(),
            before=Amounts(),
            after=Amounts(),
        )

    def with_plan(self, plan: Plan) -> Self:
        """This report with the plan of the process."""
        decoder = PartitionDecoder(plan.observation.metadata)
        held_back = plan.held_back.select("spec_id", "partition")
        return replace(
            self,
            kinds=tuple(kind for kind in OPTIMIZING_KINDS if any(task.kind == kind for task in plan.tasks)),
            tasks_planned=len(plan.tasks),
            predicted=plan.figures(),
            held_back=tuple(decoder.path(*partition) for partition in held_back.iter_rows()),
            left_out=plan.left_out,
            waiting_changes=plan.waiting_changes,
            foreign_files=plan.evaluation.files.filter(IS_FOREIGN).height,
        )

    def with_commits(self, commits: CommitSummary) -> Self:
        """This report with what the process has committed."""
        merges = [finished for finished in commits.committed if finished.task.action == "merge"]
        return replace(
            self,
            snapshot_ids=commits.snapshot_ids,
            rolled_back=commits.rolled_back,
            tasks_committed=len(commits.committed),
            dropped=tuple(f"task {finished.task.id}: {reason}" for finished, reason in commits.dropped),
            removed=Amounts.of_removed([finished.task for finished in merges], commits.removed_deletes),
            added=Amounts.of_added([file for finished in commits.committed for file in finished.result.add]),
            rows_deleted=sum(finished.result.rows_deleted for finished in merges),
            rows_copied=sum(finished.result.copied_rows for finished in merges),
            files_shared=sum(len(finished.result.shared_files) for finished in merges),
            rebased_rows=commits.rebased_rows,
            change_manifests_merged=commits.change_manifests_merged,
        )

    def with_table(self, before: Evaluation, after: Evaluation) -> Self:
        """This report with the table before and after the process."""
        return replace(
            self,
            health_before=before.health,
            health_after=after.health,
            before=Amounts.of_table(before),
            after=Amounts.of_table(after),
        )

    @property
    def tasks_dropped(self) -> int:
        """The number of tasks whose results were discarded."""
        return len(self.dropped)

    @property
    def changed(self) -> bool:
        """Whether anything was committed."""
        return bool(self.snapshot_ids)

    def to_dict(self) -> dict[str, Any]:
        """This report as a JSON document: ids are text, because not every reader of JSON keeps 64 bits."""
        return {
            **asdict(self),
            "snapshot_ids": [str(snapshot_id) for snapshot_id in self.snapshot_ids],
            "rolled_back": [str(snapshot_id) for snapshot_id in self.rolled_back],
            "health_before": self.health_before.to_dict(),
            "health_after": self.health_after.to_dict(),
            "failures": [asdict(failure) for failure in self.failures],
            "dropped": list(self.dropped),
            "waiting_changes": None if self.waiting_changes is None else self.waiting_changes.to_dict(),
            "tasks_dropped": self.tasks_dropped,
            "changed": self.changed,
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__
    __rich__ = __str__

    def _repr_html_(self) -> str:
        headline, *lines = self.lines()
        return html_page(headline, html_text("\n".join(lines)))

    def lines(self) -> list[str]:
        """This report for people."""
        lines = [self._headline()]
        if self.dry_run:
            figures = self.predicted.items()
            lines += [f"  expected {name.replace('_', ' ')}: {format_count(count)}" for name, count in figures]
        elif self.changed:
            lines += self._change_lines()
        lines += [f"  failed: task {failure.task}: {failure.detail}" for failure in self.failures]
        lines += [f"  dropped: {reason}" for reason in self.dropped]
        if self.held_back:
            example = self.held_back[0] or "the table"
            lines.append(f"  {len(self.held_back)} partitions wait for their writers, such as {example}")
        if self.foreign_files:
            lines.append(f"  {format_count(self.foreign_files)} files of Base were written by another engine")
        if self.rolled_back:
            lines.append(f"  {len(self.rolled_back)} commits were rolled back in favour of another writer")
        if self.change_manifests_merged:
            lines.append(f"  {format_count(self.change_manifests_merged)} manifests of the change store were merged")
        if self.leftovers_removed:
            lines.append(f"  {format_count(self.leftovers_removed)} files of killed processes were removed")
        if self.left_out:
            lines.append(f"  {self.left_out} partitions are left for the next process")
        if self.waiting_changes is not None:
            lines.append(f"  {self.waiting_changes}")
        return lines

    def _headline(self) -> str:
        if not self.tasks_planned and not self.changed:
            what = "nothing can be done now" if self.held_back or self.waiting_changes else "nothing to do"
            return f"{self.table}: {what}, health {self.health_before.score:g}"
        outcome = "would be optimized" if self.dry_run else "optimized" if self.changed else "not changed"
        return f"{self.table} {outcome} ({', '.join(self.kinds) or 'deletes only'}, engine {self.engine})"

    def _change_lines(self) -> Iterator[str]:
        before, after = self.before, self.after
        yield f"  data files   {_format_change(before.data_files, after.data_files)}"
        yield f"  delete files {_format_change(before.delete_files, after.delete_files)}"
        if before.change_files:
            yield f"  changes      {_format_change(before.change_files, after.change_files)} files not merged"
        if before.change_files and self.files_shared:
            yield f"  shared       {format_count(self.files_shared)} files of both stores"
        yield f"  data         {format_bytes(before.data_bytes)} → {format_bytes(after.data_bytes)}"
        yield f"  health       {self.health_before.score:g} → {self.health_after.score:g}"
        rewritten = format_bytes(self.removed.data_bytes)
        yield f"  rewrote      {rewritten} in {self.wall_seconds:.1f} s, {self.cpu_seconds:.1f} s CPU"


def _format_change(before: int, after: int) -> str:
    return f"{format_count(before)} → {format_count(after)}"
