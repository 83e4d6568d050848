"""The health of many tables, the worst first. A table or catalog that cannot be read does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from pyarctic._html import html_page, html_table
from pyarctic.errors import ArcticError, UsageError
from pyarctic.optimizing.evaluate.health import Deduction, Health
from pyarctic.optimizing.execute.local_engine import LocalEngine
from pyarctic.optimizing.options import Options
from pyarctic.optimizing.plan.plan import Plan
from pyarctic.optimizing.process import plan_table
from pyarctic.optimizing.report import Amounts
from pyarctic.tables import find_tables, open_table
from pyarctic.units import format_bytes, format_count

_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """The health of one table, and what optimizing it now would take; or the error that prevented the evaluation."""

    table: str
    """The full name; that of a catalog if its tables could not be listed."""
    kind: str | None = None
    """`keyed`, `unkeyed` or `native`."""
    score: float | None = None
    """From 0 to 100; None if the table could not be evaluated."""
    deductions: tuple[Deduction, ...] = ()
    """What it lost points for, the worst first."""
    data_files: int = 0
    delete_files: int = 0
    change_files: int = 0
    """Change files of a keyed table that can be merged."""
    bytes: int = 0
    tasks: int = 0
    """The number of tasks of `optimize` if it were called now."""
    read_bytes: int = 0
    files_in: int = 0
    """The number of data and change files that these tasks would replace."""
    files_out: int = 0
    error: dict[str, Any] | None = None
    """As `ArcticError.to_dict()`: `code`, `detail`, `hint` and more."""

    @classmethod
    def failed(cls, table: str, error: Exception) -> Self:
        """That of a table that could not be evaluated."""
        return cls(table=table, error=describe_error(error))

    def to_dict(self) -> dict[str, Any]:
        """This health as a JSON document."""
        return asdict(self) | {"deductions": [asdict(deduction) for deduction in self.deductions]}

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.table}: {self.error['code']}: {self.error['detail']}"
        deductions = "".join(f"\n  {deduction}" for deduction in self.deductions)
        return f"{self.table}: health {self.score:g} of 100{deductions}"


class HealthListener(Protocol):
    """Is notified while tables are evaluated."""

    def found(self, tables: int) -> None:
        """So many tables will be evaluated."""

    def evaluated(self, health: TableHealth) -> None:
        """A table was evaluated, or could not be."""


class HealthReport(Sequence[TableHealth]):
    """The health of tables: those that could not be evaluated, then the worst first."""

    def __init__(self, tables: Sequence[TableHealth]) -> None:
        self._tables = tuple(sorted(tables, key=lambda health: (-1 if health.score is None else health.score, health.table)))

    def __getitem__(self, index: Any) -> Any:
        return self._tables[index]

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[TableHealth]:
        return iter(self._tables)

    @property
    def failures(self) -> tuple[TableHealth, ...]:
        """Those that could not be evaluated."""
        return tuple(health for health in self._tables if health.error is not None)

    def to_dict(self) -> dict[str, Any]:
        """This report as a JSON document."""
        return {"tables": [health.to_dict() for health in self._tables], "failures": len(self.failures)}

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *(f"{line}" for health in self._tables for line in _lines(health))])

    def _repr_html_(self) -> str:
        headers = ("table", "health", "worst", "cure", "files", "deletes", "size", "tasks", "to read")
        return html_page(self._headline(), html_table(headers, map(_html_row, self._tables)))

    def _headline(self) -> str:
        healthy = sum(health.score == 100 for health in self._tables)
        failures = f", {format_count(len(self.failures))} could not be evaluated" if self.failures else ""
        return f"{format_count(len(self))} tables, {format_count(healthy)} with full health{failures}"


def _lines(health: TableHealth) -> Iterator[str]:
    if health.error is not None:
        yield f"    ?  {health.table}  {health.error['code']}: {health.error['detail']}"
        return
    yield f"{health.score:5g}  {health.table}  {format_count(health.data_files)} files, {format_bytes(health.bytes)}"
    yield from (f"       {deduction}" for deduction in health.deductions)


def _html_row(health: TableHealth) -> tuple[object, ...]:
    if health.error is not None:
        return (health.table, None, health.error["detail"], health.error["hint"], *(None,) * 5)
    worst = health.deductions[0] if health.deductions else None
    return (
        health.table,
        health.score,
        worst and worst.detail,
        worst and worst.cure,
        health.data_files,
        health.delete_files,
        format_bytes(health.bytes),
        health.tasks,
        format_bytes(health.read_bytes),
    )


def evaluate_tables(
    pattern: str | Sequence[str] | None = None, *, workers: int | None = None, listener: HealthListener | None = None
) -> HealthReport:
    """Evaluate all tables that match, a few at a time. Only figures are kept of each, not its files."""
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    found = find_tables(pattern)
    results = [TableHealth.failed(catalog, error) for catalog, error in found.failures.items()]
    if listener is not None:
        listener.found(len(found.names))
    executor = ThreadPoolExecutor(workers or _THREADS, thread_name_prefix="health")
    try:
        for future in as_completed([executor.submit(_evaluate, name) for name in found.names]):
            results.append(future.result())
            if listener is not None:
                listener.evaluated(results[-1])
    finally:
        executor.shutdown(cancel_futures=True)
    return HealthReport(results)


def _evaluate(name: str) -> TableHealth:
    try:
        table = open_table(name)
        plan = plan_table(table, Options(), LocalEngine().parallelism)
        if plan is None:
            return TableHealth(table=name, kind=table.kind, score=Health.perfect().score)
        return _of_plan(name, table.kind, plan)
    except Exception as error:  # noqa: BLE001  # one broken table must not stop the others
        return TableHealth.failed(name, error)


def _of_plan(name: str, kind: str, plan: Plan) -> TableHealth:
    health, amounts, figures = plan.evaluation.health, Amounts.of_table(plan.evaluation), plan.figures()
    return TableHealth(
        table=name,
        kind=kind,
        score=health.score,
        deductions=health.deductions,
        data_files=amounts.data_files,
        delete_files=amounts.delete_files,
        change_files=amounts.change_files,
        bytes=amounts.data_bytes,
        tasks=figures["tasks"],
        read_bytes=figures["read_bytes"],
        files_in=figures["data_files_in"] + figures["change_files_in"],
        files_out=figures["data_files_out"],
    )


def describe_error(error: Exception) -> dict[str, Any]:
    """An error in the form of `ArcticError.to_dict()`, whatever raised it."""
    if isinstance(error, ArcticError):
        return error.to_dict()
    return ArcticError(f"{type(error).__name__}: {error}").to_dict() | {"code": "internal"}
