"""What is promised and what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

console = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One promise and what was measured."""

    name: str
    measured: float
    promised: float
    unit: str
    detail: str

    @property
    def kept(self) -> bool:
        return self.measured <= self.promised
