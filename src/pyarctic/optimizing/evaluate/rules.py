"""The rules that call for optimizing, as data: what is measured, against which threshold, and what it leads to.

A rule is met when its measure reaches its threshold and the partition has something to gain. The second condition makes
optimizing converge: what a kind of optimizing leaves behind gives it nothing more to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import polars as pl

from pyarctic.optimizing.protocol.task import OptimizingKind
from pyarctic.optimizing.settings import Settings

Unit = Literal["files", "bytes", "ratio", "seconds"]

_HAS_CHECKED_ROWS = pl.col("checked_rows") > 0
_HAS_REMOVABLE_ROWS = (pl.col("removable_files") > 0) & (pl.col("deleted_rows") > 0)
_HAS_PACKABLE_FILES = pl.col("packable_files") > 0
_HAS_DEEP_FILES = pl.col("deep_files") > 0
_HAS_DISORDER = (
    (pl.col("large_files") > 0) | (pl.col("unsorted_files") > 0) | (pl.col("overlap_depth") > 1).fill_null(value=False)
)
_MOMENT = pl.Datetime("ms", "UTC")

GAINS: dict[OptimizingKind, pl.Expr] = {
    "minor": (pl.col("packable_fragments") > 0) | _HAS_CHECKED_ROWS,
    "major": _HAS_PACKABLE_FILES | _HAS_CHECKED_ROWS | _HAS_REMOVABLE_ROWS | (_HAS_DEEP_FILES & ~pl.col("is_lost")),
    "full": (
        _HAS_CHECKED_ROWS
        | pl.col("moves")
        | _HAS_PACKABLE_FILES
        | (pl.col("removable_files") > 0)
        | (_HAS_DISORDER & ~pl.col("is_lost"))
    ),
}
"""Whether a partition would improve by each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One trigger of optimizing."""

    name: str
    kind: OptimizingKind
    unit: Unit
    doc: str
    measured: pl.Expr
    threshold: Callable[[Settings], float | None]
    """None: the rule is switched off."""
    condition: Callable[[Settings], pl.Expr] = lambda _: pl.lit(value=True)
    """What must hold besides."""
    since: pl.Expr | None = None
    """For rules about time: when the time began."""

    def columns(self, settings: Settings, now: datetime) -> dict[str, pl.Expr]:
        """For each partition: `<name>_measured`, `<name>_met`, `<name>_gains` (whether it could help), and `<name>_next_at`
        (when it could be met if nothing more is written)."""
        threshold = self.threshold(settings)
        gains = GAINS[self.kind]
        measured, next_at = self.measured, pl.lit(None, _MOMENT)
        if self.since is not None:
            measured = (pl.lit(now).cast(_MOMENT) - self.since).dt.total_milliseconds() / 1000
            if threshold is not None:
                next_at = pl.when(gains).then(self.since + pl.lit(timedelta(seconds=threshold)))
        could_help = self.condition(settings) & gains
        is_met = pl.lit(value=False) if threshold is None else (measured >= threshold) & could_help
        return {
            f"{self.name}_measured": measured.cast(pl.Float64),
            f"{self.name}_met": is_met.fill_null(value=False),
            f"{self.name}_gains": could_help.fill_null(value=False),
            f"{self.name}_next_at": next_at,
        }


def _seconds(interval: timedelta | None) -> float | None:
    return None if interval is None else interval.total_seconds()


RULES: tuple[Rule, ...] = (
    Rule(
        name="small-files",
        kind="minor",
        unit="files",
        doc="fragments, equality delete files, changes that are not merged",
        measured=pl.col("fragments") + pl.col("equality_files"),
        threshold=lambda settings: settings.minor_file_count * settings.write_nodes,
    ),
    Rule(
        name="equality-delete-size",
        kind="minor",
        unit="bytes",
        doc="size of equality deletes, or of deletes that are not merged",
        measured=pl.col("equality_bytes"),
        threshold=lambda settings: settings.minor_delete_bytes * settings.write_nodes,
    ),
    Rule(
        name="minor-interval",
        kind="minor",
        unit="seconds",
        doc="how long fragments, equality deletes or changes have waited",
        measured=pl.lit(None, pl.Float64),
        threshold=lambda settings: _seconds(settings.minor_interval),
        since=pl.col("waiting_since"),
    ),
    Rule(
        name="foreign-files",
        kind="minor",
        unit="files",
        doc="keyed tables: files that another engine has put into the base store",
        measured=pl.col("foreign_files"),
        threshold=lambda _: 1,
    ),
    Rule(
        name="delete-ratio",
        kind="major",
        unit="ratio",
        doc="deleted rows to all rows; size of deletes that are not merged to all data",
        measured=pl.col("delete_ratio"),
        threshold=lambda settings: settings.major_delete_ratio,
        condition=lambda settings: (
            pl.col("position_bytes") + pl.col("equality_bytes") >= settings.major_delete_lowest_bytes * settings.write_nodes
        ),
    ),
    Rule(
        name="undersized-total",
        kind="major",
        unit="bytes",
        doc="size of all files below the target",
        measured=pl.col("small_bytes"),
        threshold=lambda settings: settings.target_bytes,
        condition=lambda _: _HAS_PACKABLE_FILES,
    ),
    Rule(
        name="overlap-depth",
        kind="major",
        unit="files",
        doc="files that hold the same keys, if rows are sorted",
        measured=pl.col("overlap_depth"),
        threshold=lambda settings: settings.overlap_depth,
        condition=lambda _: _HAS_DEEP_FILES,
    ),
    Rule(
        name="position-delete-size",
        kind="full",
        unit="bytes",
        doc="size of position deletes, those to come from equality deletes included",
        measured=pl.col("expected_position_bytes"),
        threshold=lambda settings: settings.full_position_delete_bytes,
    ),
    Rule(
        name="full-interval",
        kind="full",
        unit="seconds",
        doc="how long ago everything was rewritten",
        measured=pl.lit(None, pl.Float64),
        threshold=lambda settings: _seconds(settings.full_interval),
        since=pl.coalesce("full_at", "oldest_file_at"),
    ),
)

CAUSES = pl.concat_list([pl.when(pl.col(f"{rule.name}_met")).then(pl.lit(rule.name)) for rule in RULES]).list.drop_nulls()
"""The names of the rules that are met."""
