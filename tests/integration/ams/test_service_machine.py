"""Random events on the desk of a service, restarts among them: what must hold after each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from pyiceberg.catalog import Catalog

import pyarctic
from pyarctic.ams.handing import HandedTask, Registration
from pyarctic.ams.machine import InvalidTransition
from pyarctic.ams.rows import ClaimRow, EventRow, OptimizerRow, ProcessRow, TaskRow
from pyarctic.ams.settings import ServiceSettings
from pyarctic.ams.states import ENDED_PROCESSES, ENDED_TASKS, MACHINES, TaskState
from pyarctic.ams.store import MemoryStore
from pyarctic.errors import StaleAttempt, UnknownOptimizer
from tests.support.ams import Desk
from tests.support.fragmented_table import fragmented_table
from tests.support.integrity import missing

NAME = "lake.db.t"
FULL = {"self-optimizing.full.trigger.interval": "1h", "self-optimizing.minor.trigger.file-count": "2"}
LEGAL = {machine.name: machine.moves for machine in MACHINES}
SETTINGS = ServiceSettings(commit_interval=timedelta(0), dead_attempt_grace=timedelta(seconds=30))


def ids() -> list[int]:
    return sorted(pyarctic.table(NAME).scan().to_arrow()["id"].to_pylist())


class ServiceMachine(RuleBasedStateMachine):
    """A small table whose processes have three tasks each."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_events = 0
        self.last: dict[tuple[str, str], str] = {}
        self.attempts: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.handed: list[HandedTask] = []
        self.documents: dict[tuple[str, int], dict[str, Any]] = {}

    @initialize()
    def begin(self) -> None:
        self.desk = Desk(MemoryStore(), SETTINGS)
        self.rows = ids()
        self.desk.discover()
        self.desk.look()

    # ---- events ---------------------------------------------------------------------------------------------------------

    @rule(slots=st.integers(1, 3))
    def poll(self, slots: int) -> None:
        try:
            self.handed += self.desk.poll(slots)
        except UnknownOptimizer:
            self.desk.optimizer, _ = self.desk.ams.optimizers.register(Registration(parallelism=2))

    @precondition(lambda self: self.handed)
    @rule(data=st.data(), how=st.sampled_from(["acknowledge", "progress", "complete", "fail", "fail", "storage"]))
    def report(self, data: st.DataObject, how: str) -> None:
        """Of any attempt that there ever was, also twice and too late."""
        handed = data.draw(st.sampled_from(self.handed))
        key, attempt = handed.row.key, handed.attempt
        task = self.task(key)
        counts = task.state is TaskState.EXECUTING and task.attempt == attempt
        optimizers = self.desk.ams.optimizers
        try:
            if how == "acknowledge":
                optimizers.acknowledge(key, attempt)
            elif how == "progress":
                optimizers.progress(key, attempt, 1, 1)
            elif how == "complete":
                self.desk.report(handed, self.execute(handed))
            elif how == "storage":
                optimizers.storage_of(key, attempt)
            else:
                self.desk.fail(handed)
        except StaleAttempt:
            assert not counts
            assert self.task(key) == task

    def execute(self, handed: HandedTask) -> dict[str, Any]:
        key = handed.row.key, handed.attempt
        if key not in self.documents:
            self.documents[key] = self.desk.execute(handed)
        return self.documents[key]

    @rule(listed=st.booleans())
    def heartbeat(self, listed: bool) -> None:
        attempts = [(each.row.key, each.attempt) for each in self.handed] if listed else []
        try:
            _, stop = self.desk.ams.optimizers.heartbeat(self.desk.optimizer.id, attempts)
        except UnknownOptimizer:
            return
        for key, attempt in attempts:
            task = self.task(key)
            counts = task.state is TaskState.EXECUTING and task.attempt == attempt
            assert ((key, attempt) in stop) is not counts

    @rule(seconds=st.sampled_from([1, 6, 31, 70, 4000, 50_000]))
    def wait(self, seconds: int) -> None:
        self.desk.wait(seconds=seconds)

    @rule(days=st.sampled_from([-1, 1]))
    def set_the_clock(self, days: int) -> None:
        self.desk.clock.set(days=days)

    @rule()
    def keep(self) -> None:
        self.desk.keep()

    @rule()
    def look(self) -> None:
        self.desk.look()

    @rule()
    def commit(self) -> None:
        self.desk.commit()

    @rule()
    def clean(self) -> None:
        self.desk.clean()

    @rule()
    def restart(self) -> None:
        self.desk.start()

    @rule(how=st.sampled_from(["drain", "stop"]))
    def leave(self, how: str) -> None:
        try:
            if how == "drain":
                self.desk.ams.optimizers.drain(self.desk.optimizer.id, "test")
            else:
                self.desk.ams.optimizers.stop(self.desk.optimizer.id)
        except InvalidTransition:
            pass
        self.desk.optimizer, _ = self.desk.ams.optimizers.register(Registration(parallelism=2))

    @rule()
    def cancel(self) -> None:
        for process in self.desk.unfinished()[:1]:
            try:
                self.desk.ams.cancel(process.id, "test")
            except InvalidTransition:
                assert process.state == "cancelling"

    @rule(pauses=st.booleans())
    def pause_or_resume(self, pauses: bool) -> None:
        uuid = self.desk.table(NAME).uuid
        try:
            if pauses:
                self.desk.ams.pause(uuid, "test")
            else:
                self.desk.ams.resume(uuid, "test")
        except InvalidTransition:
            pass

    # ---- what holds -----------------------------------------------------------------------------------------------------

    def task(self, key: str) -> TaskRow:
        process, _, number = key.rpartition(".")
        with self.desk.store.read() as view:
            row = view.get(TaskRow, process, int(number))
        assert row is not None
        return row

    @invariant()
    def every_move_is_legal_and_goes_on_from_the_last_one(self) -> None:
        for event in self.new_events():
            key = event.kind, event.key
            assert event.before == self.last.get(key), event
            if event.before is not None:
                moves = {(str(before), str(after)) for before, after in LEGAL[event.kind]}
                assert (event.before, event.after) in moves, event
            self.last[key] = event.after

    def new_events(self) -> Iterator[EventRow]:
        for event in self.desk.store.events_after(self.seen_events):
            self.seen_events = event.number
            yield event

    @invariant()
    def states_are_those_of_the_events(self) -> None:
        for task in self.desk.tasks():
            assert self.last["task", task.key] == task.state
        for process in self.desk.processes():
            assert self.last["process", process.id] == process.state

    @invariant()
    def attempts_only_grow_and_what_has_ended_stays(self) -> None:
        for task in self.desk.tasks():
            attempt = -1 if task.attempt is None else task.attempt
            assert attempt >= self.attempts.get(task.key, -1)
            assert self.ended.get(task.key, task.state) == task.state
            self.attempts[task.key] = attempt
            if task.state in ENDED_TASKS:
                self.ended[task.key] = task.state
                assert task.ended_at is not None

    @invariant()
    def only_working_optimizers_have_tasks(self) -> None:
        with self.desk.store.read() as view:
            working = {row.id for row in view.find(OptimizerRow) if row.ended_at is None}
        executing = [task for task in self.desk.tasks() if task.state is TaskState.EXECUTING]
        assert all(task.optimizer_id in working for task in executing)

    @invariant()
    def claims_are_those_of_unfinished_processes(self) -> None:
        with self.desk.store.read() as view:
            claims = {claim.process_id for claim in view.find(ClaimRow)}
            processes = {row.id: row for row in view.find(ProcessRow)}
        unfinished = {row.id for row in processes.values() if row.state not in ENDED_PROCESSES}
        assert claims == unfinished

    @invariant()
    def ended_processes_have_ended_tasks(self) -> None:
        by_process: dict[str, list[TaskRow]] = defaultdict(list)
        for task in self.desk.tasks():
            by_process[task.process_id].append(task)
        for process in self.desk.processes():
            if process.state in ENDED_PROCESSES:
                assert all(task.state in ENDED_TASKS for task in by_process[process.id])

    def teardown(self) -> None:
        """Whatever has happened, the service comes to rest."""
        if not hasattr(self, "desk"):
            return
        desk = self.desk
        desk.optimizer, _ = desk.ams.optimizers.register(Registration(parallelism=2))
        if desk.table(NAME).state == "paused":
            desk.ams.resume(desk.table(NAME).uuid, "test")
        for _ in range(12):
            desk.ams.optimizers.heartbeat(desk.optimizer.id, [])
            desk.look()
            for handed in desk.poll():
                desk.report(handed, self.execute(handed))
            desk.commit()
            desk.keep()
            desk.clean()
            desk.wait(minutes=1)
        assert desk.unfinished() == []
        assert ids() == self.rows
        assert missing(pyarctic.table(NAME)._loaded) == []
        self.every_move_is_legal_and_goes_on_from_the_last_one()


def test_the_service_keeps_its_promises(lake: Catalog, tmp_path: Any) -> None:
    """Each example begins with a table of its own."""

    class Machine(ServiceMachine):
        @initialize()
        def begin(self) -> None:
            if lake.table_exists("db.t"):
                pyarctic.drop_table(NAME)
            fragmented_table(lake, "db.t")
            pyarctic.table(NAME).set(FULL)
            super().begin()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
