"""The health of a table or a partition: 100, minus points for what optimizing could improve.

What optimizing would not improve costs nothing. Where no rule calls for optimizing, a few files cost nothing either: as many
as may wait before the rule `small-files` is met, over all such partitions of a table.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import polars as pl

from pyarctic.optimizing.settings import Settings

Cause = Literal["small-files", "equality-deletes", "position-deletes", "pending-changes", "foreign-files"]

SMALL_FILES_WEIGHT, EQUALITY_WEIGHT, POSITION_WEIGHT = 40, 40, 20
_WORST_DELETED_SHARE = 0.25
"""The share of deleted rows that costs all of POSITION_WEIGHT."""
_IMPROVABLE = ["excess_files", "compared_rows", "removable_rows"]
"""What optimizing could improve."""
_TOTALS = ["all_files", "all_rows"]
IS_DUE = pl.col("kind").is_not_null()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduction:
    """Points that a table lost for one reason."""

    cause: Cause
    points: float
    detail: str
    """What hurts, with figures."""
    cure: str
    """What optimizing would do about it, and when."""

    def __str__(self) -> str:
        return f"−{self.points:g} {self.cause}: {self.detail}; {self.cure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A score from 0 to 100, and what it lost points for.

    `small_files`, `equality_deletes` and `position_deletes` are points that were subtracted. Changes of a keyed table that
    are not merged count as small files and as equality deletes."""

    score: float = 100.0
    small_files: float = 0.0
    equality_deletes: float = 0.0
    position_deletes: float = 0.0
    deductions: tuple[Deduction, ...] = ()
    """The worst first."""

    @classmethod
    def perfect(cls) -> Self:
        """That of a table without data."""
        return cls()

    def to_dict(self) -> dict[str, Any]:
        """This health as a JSON document."""
        return asdict(self) | {"deductions": [asdict(deduction) for deduction in self.deductions]}

    def __str__(self) -> str:
        return "\n".join([f"{self.score:g} of 100", *(f"  {deduction}" for deduction in self.deductions)])


def with_health(partitions: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """Partitions with their health and the points they lost."""
    improvable = [pl.col(name) * weight_of(pl.col("waiting_files"), settings) for name in _IMPROVABLE]
    return partitions.with_columns(**_score(*(pl.col(name) for name in _TOTALS), *improvable, settings=settings))


def table_points(partitions: pl.DataFrame, settings: Settings) -> dict[str, float]:
    """The health of a table and the points it lost, from all its partitions."""
    weight = weight_of(pl.col("waiting_files").filter(~IS_DUE).sum(), settings)
    sums = partitions.select(pl.col(_TOTALS).sum(), *((pl.col(name) * weight).sum() for name in _IMPROVABLE))
    columns = (pl.col(name) for name in (*_TOTALS, *_IMPROVABLE))
    return {
        name: float(value) for name, value in sums.select(**_score(*columns, settings=settings)).row(0, named=True).items()
    }


def weight_of(waiting_files: pl.Expr, settings: Settings) -> pl.Expr:
    """How much a partition counts, 0 to 1: completely if a rule calls for optimizing it, otherwise by the share of files
    that are more than a few."""
    excess_share = 1 - (files_to_trigger(settings) - 1) / waiting_files
    return pl.when(IS_DUE).then(1.0).when(waiting_files > 0).then(excess_share.clip(0, 1)).otherwise(0.0)


def files_to_trigger(settings: Settings) -> int:
    """The number of files that meets the rule `small-files`."""
    return settings.minor_file_count * settings.write_nodes


def _score(
    all_files: pl.Expr,
    all_rows: pl.Expr,
    excess_files: pl.Expr,
    compared_rows: pl.Expr,
    removable_rows: pl.Expr,
    *,
    settings: Settings,
) -> dict[str, pl.Expr]:
    """Health and points. A few files are no burden, even if all of them are small."""
    files, rows = all_files.clip(lower_bound=files_to_trigger(settings)), all_rows.cast(pl.Float64)
    points = {
        "small_files_points": (SMALL_FILES_WEIGHT * excess_files / files).clip(0, SMALL_FILES_WEIGHT),
        "equality_deletes_points": (EQUALITY_WEIGHT * compared_rows / rows).clip(0, EQUALITY_WEIGHT),
        "position_deletes_points": (POSITION_WEIGHT * removable_rows / rows / _WORST_DELETED_SHARE).clip(0, POSITION_WEIGHT),
    }
    points = {name: value.fill_nan(0).fill_null(0) for name, value in points.items()}
    return {"health": 100 - pl.sum_horizontal(points.values()), **points}
