"""Looking on while a table is optimized: a bar on a terminal, elsewhere a line for each thing that happens.

Loaded only by the command that needs it, because Rich is.
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

from pyarctic.cli.session import note, progress_wanted
from pyarctic.cli.view.explain_page import place
from pyarctic.units import format_bytes

if TYPE_CHECKING:
    from pyarctic.optimizing.plan import Plan
    from pyarctic.optimizing.protocol import Progress as TaskProgress
    from pyarctic.optimizing.protocol import TaskFailure


@contextmanager
def watching(table: str) -> Iterator[Lines]:
    """Somebody who looks on, as suits the terminal."""
    if not progress_wanted():
        yield Lines()
        return
    bar = Bar(table, Console(stderr=True))
    with bar.drawn:
        yield bar


def heed_interrupts() -> None:
    """Let Ctrl-C end a wait at once. Polars, when it is loaded, has the system go on waiting instead."""
    import pyarctic.optimizing  # noqa: F401  # loads Polars

    signal.siginterrupt(signal.SIGINT, True)


class Lines:
    """One line when a task ends or something is committed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        """The partitions of the tasks that failed, in order."""
        self._partitions: dict[int, str] = {}
        self._ended = 0

    def planned(self, plan: Plan) -> None:
        """Maybe more than once: a run may go round again."""
        self._partitions = {task.id: task.partition for task in plan.tasks}
        self._ended = 0

    def progress(self, progress: TaskProgress) -> None:
        """Too often for lines."""

    def ended(self, task: int, failure: TaskFailure | None) -> None:
        self._ended += 1
        if failure is not None:
            self.failed.append(self._partitions.get(task, ""))
            hint = f"; {failure.hint}" if failure.hint else ""
            self.tell(f"{self._named(task)} failed [{failure.code}]: {failure.detail}{hint}", style="yellow")
        else:
            self.task_done(f"{self._named(task)} done, {self._ended} of {len(self._partitions)}")

    def said(self, text: str) -> None:
        self.tell(text)

    def task_done(self, text: str) -> None:
        self.tell(text)

    def tell(self, text: str, style: str | None = None) -> None:
        note(text, style=style)

    def _named(self, task: int) -> str:
        return f"task {task} ({place(self._partitions.get(task, ''))})"


class Bar(Lines):
    """Tasks and bytes that are done, how fast, and how long it will take. Only what matters is told in lines, above it."""

    def __init__(self, table: str, console: Console) -> None:
        super().__init__()
        columns: tuple[ProgressColumn, ...] = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            _Amounts(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True),
        )
        self.drawn = Progress(*columns, console=console, transient=True, expand=True)
        self._row = self.drawn.add_task(f"planning {table}", total=None, tasks="")
        self._table = table
        self._sizes: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        # Workers tell of their progress from threads of their own.
        self._lock = threading.Lock()

    def planned(self, plan: Plan) -> None:
        super().planned(plan)
        # A task without bytes would be done before it began.
        self._sizes = {task.id: max(task.input_bytes, 1) for task in plan.tasks}
        self._seen = {}
        if self._sizes:
            self.drawn.reset(self._row, description=self._table, total=sum(self._sizes.values()), tasks=self._tasks())

    def progress(self, progress: TaskProgress) -> None:
        self._advance(progress.task, progress.bytes)

    def ended(self, task: int, failure: TaskFailure | None) -> None:
        super().ended(task, failure)
        self._advance(task, self._sizes.get(task, 0))
        if self._ended == len(self._sizes):
            self.drawn.update(self._row, description=f"committing to {self._table}")

    def task_done(self, text: str) -> None:
        """The bar shows it."""

    def tell(self, text: str, style: str | None = None) -> None:
        self.drawn.console.print(Text(text, style=style or "dim"))

    def _advance(self, task: int, size: int) -> None:
        with self._lock:
            # An attempt that is repeated begins again; the bar waits for it rather than going back.
            self._seen[task] = max(self._seen.get(task, 0), min(size, self._sizes.get(task, 0)))
            self.drawn.update(self._row, completed=sum(self._seen.values()), tasks=self._tasks())

    def _tasks(self) -> str:
        return f"{self._ended}/{len(self._sizes)} tasks"


class _Amounts(ProgressColumn):
    """`3/7 tasks  1.2 GiB of 4.0 GiB  80.0 MiB/s`."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        size = f"{format_bytes(int(task.completed))} of {format_bytes(int(task.total))}"
        speed = task.finished_speed or task.speed
        return Text("  ".join([task.fields["tasks"], size, *([f"{format_bytes(int(speed))}/s"] if speed else [])]))
