"""Parts that several pages share: lines of facts, and the wording of partitions, health and durations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, Section

if TYPE_CHECKING:
    from pyarctic.optimizing import Health

FACT_COLUMNS = (Column("field", "Field", priority=0), Column("value", "Value", "time", priority=0, fit="wrap"))
_TIME_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def facts_section(title: str | None, pairs: Iterable[tuple[str, Any]]) -> Section:
    """A section of `label value` lines."""
    rows = [{"field": field, "value": value} for field, value in pairs]
    return Section(title=title, plain=True, frame=Frame(columns=FACT_COLUMNS, rows=rows))


def partition_label(partition: str) -> str:
    """The partition path for display."""
    return partition or "(whole table)"


def format_health(health: Health) -> str:
    """The score, and what each part subtracts."""
    parts = (("small files", health.small_files), ("equality deletes", health.equality_deletes))
    losses = [f"{label} −{loss:g}" for label, loss in (*parts, ("position deletes", health.position_deletes)) if loss]
    return f"{health.score:g}/100" + (f" ({', '.join(losses)})" if losses else "")


def format_span(seconds: float) -> str:
    """Format a duration in its two largest units: `1 h 30 min`."""
    rest = round(seconds)
    parts: list[tuple[int, str]] = []
    for length, unit in _TIME_UNITS:
        amount, rest = divmod(rest, length)
        if amount or parts:
            parts.append((amount, unit))
    return " ".join(f"{amount} {unit}" for amount, unit in parts[:2] if amount) or "0 s"
