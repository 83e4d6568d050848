"""The health of a table or a partition: 100, minus penalties for small files and for deletes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import polars as pl

SMALL_FILES_WEIGHT, EQUALITY_WEIGHT, POSITION_WEIGHT = 40, 40, 20
_WORST_DELETED_SHARE = 0.25
"""The share of deleted rows that costs all of POSITION_WEIGHT."""
HEALTH_COLUMNS = ["data_files", "records", "excess_files", "compared_rows", "deleted_rows"]
"""The columns that health is computed from; they may be summed over partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A score from 0 to 100, and the penalties that were subtracted."""

    score: float
    small_files: float
    equality_deletes: float
    position_deletes: float

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Self:
        """From the values of `health_columns`."""
        return cls(
            score=round(values["health"], 1),
            small_files=round(values["small_files_penalty"], 1),
            equality_deletes=round(values["equality_deletes_penalty"], 1),
            position_deletes=round(values["position_deletes_penalty"], 1),
        )

    @classmethod
    def perfect(cls) -> Self:
        """That of a table without data."""
        return cls(score=100.0, small_files=0.0, equality_deletes=0.0, position_deletes=0.0)


def health_columns() -> dict[str, pl.Expr]:
    """Health and its penalties, from HEALTH_COLUMNS."""
    files, rows = pl.col("data_files").cast(pl.Float64), pl.col("records").cast(pl.Float64)
    small_files = SMALL_FILES_WEIGHT * (pl.col("excess_files") / files)
    equality = EQUALITY_WEIGHT * (pl.col("compared_rows") / rows)
    position = POSITION_WEIGHT * (pl.col("deleted_rows") / rows / _WORST_DELETED_SHARE)
    penalties = {
        "small_files_penalty": small_files.clip(0, SMALL_FILES_WEIGHT),
        "equality_deletes_penalty": equality.clip(0, EQUALITY_WEIGHT),
        "position_deletes_penalty": position.clip(0, POSITION_WEIGHT),
    }
    penalties = {name: penalty.fill_nan(0).fill_null(0) for name, penalty in penalties.items()}
    return {"health": 100 - pl.sum_horizontal(penalties.values()), **penalties}
