"""Progress of optimizing: a bar on a terminal, else one line per event.

Imported only by the command that needs it, because it imports Rich.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from pyarctic.cli.session import note, shows_progress
from pyarctic.units import format_bytes

if TYPE_CHECKING:
    from pyarctic.optimizing import ProcessEvent
    from pyarctic.optimizing.plan import Plan
    from pyarctic.optimizing.protocol import Progress as TaskProgress
    from pyarctic.optimizing.protocol import TaskFailure


@contextmanager
def watch_progress(table: str) -> Iterator[LineWatcher]:
    """Yield a listener that suits stderr: a progress bar on a terminal, else lines."""
    if not shows_progress():
        yield LineWatcher()
        return
    bar = BarWatcher(table, Console(stderr=True))
    with bar.display:
        yield bar


def make_waits_interruptible() -> None:
    """Let Ctrl-C and SIGTERM interrupt waits at once. Importing Polars makes the system restart interrupted waits."""
    import pyarctic.optimizing  # noqa: F401  # loads Polars

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.siginterrupt(number, True)


class LineWatcher:
    """Prints a line when a task ends or a commit happens."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        """The partitions of the failed tasks, in order."""
        self._partitions: dict[int, str] = {}
        self._ended = 0

    def __call__(self, event: ProcessEvent) -> None:
        """Show an event."""
        from pyarctic.optimizing import Planned, TaskEnded, TaskProgressed

        match event:
            case Planned():
                self.planned(event.plan)
            case TaskProgressed():
                self.progress(event.progress)
            case TaskEnded():
                self.ended(event.task, event.failure)
            case _:
                self.print_line(str(event))

    def planned(self, plan: Plan) -> None:
        """Start counting; called again each time the process plans again."""
        self._partitions = {task.id: task.partition for task in plan.tasks}
        self._ended = 0

    def progress(self, progress: TaskProgress) -> None:
        """Ignored: too frequent for lines."""

    def ended(self, task: int, failure: TaskFailure | None) -> None:
        self._ended += 1
        if failure is not None:
            self.failed.append(self._partitions.get(task, ""))
            hint = f"; {failure.hint}" if failure.hint else ""
            self.print_line(f"{self._label(task)} failed [{failure.code}]: {failure.detail}{hint}", style="yellow")
        else:
            self.task_done(f"{self._label(task)} done, {self._ended} of {len(self._partitions)}")

    def task_done(self, text: str) -> None:
        self.print_line(text)

    def print_line(self, text: str, style: str | None = None) -> None:
        note(text, style=style)

    def _label(self, task: int) -> str:
        return f"task {task} ({self._partitions.get(task) or 'whole table'})"


class BarWatcher(LineWatcher):
    """Shows tasks and bytes done, throughput and remaining time; failures and commits are printed as lines above it."""

    def __init__(self, table: str, console: Console) -> None:
        super().__init__()
        columns: tuple[ProgressColumn, ...] = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            _AmountsColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True),
        )
        self.display = Progress(*columns, console=console, transient=True, expand=True)
        self._bar = self.display.add_task(f"planning {table}", total=None, tasks="")
        self._table = table
        self._sizes: dict[int, int] = {}
        self._bytes_done: dict[int, int] = {}
        # Workers report progress from other threads.
        self._lock = threading.Lock()

    def planned(self, plan: Plan) -> None:
        super().planned(plan)
        # A task without bytes would be done before it starts.
        self._sizes = {task.id: max(task.input_bytes, 1) for task in plan.tasks}
        self._bytes_done = {}
        if self._sizes:
            self.display.reset(
                self._bar, description=self._table, total=sum(self._sizes.values()), tasks=self._format_tasks()
            )

    def progress(self, progress: TaskProgress) -> None:
        self._advance(progress.task, progress.bytes)

    def ended(self, task: int, failure: TaskFailure | None) -> None:
        super().ended(task, failure)
        self._advance(task, self._sizes.get(task, 0))
        if self._ended == len(self._sizes):
            self.display.update(self._bar, description=f"committing to {self._table}")

    def task_done(self, text: str) -> None:
        """Ignored: the bar shows it."""

    def print_line(self, text: str, style: str | None = None) -> None:
        self.display.console.print(Text(text, style=style or "dim"))

    def _advance(self, task: int, size: int) -> None:
        with self._lock:
            # A repeated attempt starts from zero; the bar waits for it instead of going back.
            self._bytes_done[task] = max(self._bytes_done.get(task, 0), min(size, self._sizes.get(task, 0)))
            self.display.update(self._bar, completed=sum(self._bytes_done.values()), tasks=self._format_tasks())

    def _format_tasks(self) -> str:
        return f"{self._ended}/{len(self._sizes)} tasks"


class _AmountsColumn(ProgressColumn):
    """`3/7 tasks  1.2 GiB of 4.0 GiB  80.0 MiB/s`."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        size = f"{format_bytes(int(task.completed))} of {format_bytes(int(task.total))}"
        speed = task.finished_speed or task.speed
        return Text("  ".join([task.fields["tasks"], size, *([f"{format_bytes(int(speed))}/s"] if speed else [])]))
