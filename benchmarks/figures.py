"""A measured figure and its target."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

console = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure and its target."""

    name: str
    measured: float
    target: float
    unit: str
    detail: str

    @property
    def met(self) -> bool:
        return self.measured <= self.target
