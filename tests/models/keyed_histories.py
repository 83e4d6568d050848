"""Random histories of keyed tables with optimizing processes, while others write."""

from __future__ import annotations

from dataclasses import replace

from pyarctic.optimizing import KindChoice, Options, Report, optimize_table
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.commit import roll_back
from pyarctic.optimizing.plan import Plan
from pyarctic.optimizing.plan.plan import KeyedPlan
from tests.models.key_versions import SELECTIONS
from tests.models.optimized_keyed_table import OptimizedKeyedModel, pending
from tests.support.optimizing import InProcessEngine, RecordingListener

KINDS: tuple[KindChoice, ...] = ("auto", "minor", "major", "full")


class Process:
    """One process, with other writers after a task, before a commit and after a commit."""

    def __init__(self, model: OptimizedKeyedModel, writers: int) -> None:
        random = model.random
        self._model, self._random, self._left = model, random, writers
        kind = random.choice(KINDS)
        where = None
        if SELECTIONS[model.spec] and random.random() < 0.2:
            where = model._now(random.choice(SELECTIONS[model.spec])[0])
        memory = random.choice([4 << 10, 256 << 10, 64 << 20])
        self.options = Options(kind=kind, where=where, verify=random.random() < 0.7, memory_bytes=memory)
        self.disturbed: set[tuple[int, str]] = set()
        """Partitions to whose Base others have added rows meanwhile, or from which they took whole files, or merged them."""
        self.lessened: set[tuple[int, str]] = set()
        """Partitions in whose Base others have deleted rows meanwhile."""
        self.is_quiet = True
        self._may_wait = bool(model.begun or model.abandoned)

    def run(self) -> Report:
        model, options = self._model, self.options
        engine = InProcessEngine(after_task=self._others, before_commit=self._others)
        onlooker = RecordingListener(self._others)
        model.log.append(f"{options} begins")
        report = optimize_table(model.opened(), engine, options, onlooker)
        model.log.append(
            f"process ends: {report.tasks_planned} planned, {report.tasks_committed} committed, {report.dropped} dropped, "
            f"{report.rows_copied} rows copied, {report.files_shared} files shared, {report.rebased_rows} rebased"
        )
        assert not report.failures, report.failures
        model.learn()
        model.check()
        self._check_dropped(engine, report)
        if onlooker.plans:
            (planned,) = onlooker.plans
            self._check_result(planned)
        return report

    def _check_dropped(self, engine: InProcessEngine, report: Report) -> None:
        """Work is lost only where others have changed what it was about."""
        for text in report.dropped:
            number = int(text.removeprefix("task ").split(":")[0])
            task = next(task for task in engine.tasks if task.id == number)
            place = task.spec_id, task.partition_key
            is_lessened = "others have deleted rows" in text and place in self.lessened
            assert is_lessened or place in self.disturbed, f"done in vain: {text}"

    def _others(self) -> None:
        if not self._left or self._random.random() < 0.3:
            return
        self._left -= 1
        self.is_quiet = False
        model = self._model
        steps = [model.insert, model.upsert, model.delete, model.cdc, model.overwrite, model.overwrite, model.foreign_change]
        steps += [model.foreign_base, model.foreign_delete, model.foreign_delete, model.change_buckets, model.evolve]
        steps += [model.begin, model.finish, model.foreign_rewrite, model.rewrite_manifests, self._optimize]
        before, deletes = state(model), model.base_files(deletes=True)
        model.log.append("  meanwhile:")
        model.play(self._random.choice(steps))
        after, deletes_after = state(model), model.base_files(deletes=True)
        self.disturbed |= {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}
        self.lessened |= {place for place, files in deletes_after.items() if files != deletes.get(place)}

    def _optimize(self) -> None:
        """Another process optimizes the same table."""
        Process(self._model, 0).run()

    def _check_result(self, planned: Plan) -> None:
        """What a process leaves if no other writer disturbs it."""
        assert isinstance(planned, KeyedPlan)
        model, changes = self._model, planned.changes
        assert changes.oldest_open is None or self._may_wait
        if not self.is_quiet or changes.oldest_open is not None:
            return
        table = model.opened()
        due = planned.partitions.filter(planned.partitions["kind"].is_not_null() & ~planned.partitions["is_ambiguous"])
        assert not pending(table) & {(spec_id, key) for spec_id, key in due.select("spec_id", "partition").iter_rows()}
        again = plan_table(table, replace(self.options, verify=False))
        assert again is not None
        if model.is_roomy:
            why = [(task.kind, task.partition, task.data.height, task.reasons) for task in again.tasks]
            assert not again, f"again: {why}, {again.dangling_deletes.height} dangling deletes"


def state(model: OptimizedKeyedModel) -> dict[tuple[int, str], tuple[set[str], int]]:
    """The data files of every partition of Base, and how far it is merged."""
    table = model.opened()
    looked = plan_table(table, Options())
    files = model.base_files()
    if not isinstance(looked, KeyedPlan):
        return {}
    merged = looked.changes.partitions.select("spec_id", "partition", "merged")
    return {(spec_id, key): (files.get((spec_id, key), set()), number) for spec_id, key, number in merged.iter_rows()}


def optimize(model: OptimizedKeyedModel) -> None:
    """A process, alone or with other writers; sometimes it is rolled back."""
    model.learn()
    bases, before = list(model.bases), model.opened().view.snapshot_id
    process = Process(model, model.random.choice([0, 0, 1, 2, 4]))
    report = process.run()
    if process.is_quiet and report.snapshot_ids and before is not None and model.random.random() < 0.2:
        roll_back(model.opened())
        model.bases = bases
        model.log.append("the process is rolled back")
    model.check()
    model.check_plain()
    model.check_files()


def play(model: OptimizedKeyedModel) -> None:
    random = model.random
    steps = [model.insert, model.upsert, model.upsert, model.delete, model.cdc, model.cdc]
    steps += [model.upsert_across, model.delete_across, model.overwrite, model.evolve, model.change_buckets]
    steps += [model.rewrite_manifests]
    if random.random() < 0.5:
        steps += [
            model.foreign_change,
            model.foreign_base,
            model.foreign_rewrite,
            model.foreign_delete,
            model.foreign_delete,
        ]
    if random.random() < 0.4:
        steps += [model.begin, model.finish, model.finish]
    if random.random() < 0.3:  # transactions that overtake each other, and rows of others between them
        steps += [model.begin, model.finish, model.overwrite, model.foreign_base, model.foreign_delete] * 3
    for _ in range(random.choice([2, 3, 4])):
        for _ in range(random.choice([1, 2, 4])):
            model.play(random.choice(steps))
        optimize(model)
    model.check_whole()
