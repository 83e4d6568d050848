"""The health of a table's partitions, and which kind of optimizing each of them needs.

Evaluating is pure: the same observation gives the same evaluation. Everything is a column of one frame with a row for each
partition: a table may have a hundred thousand of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import polars as pl

from pyarctic.optimizing.evaluate.deductions import deductions_of
from pyarctic.optimizing.evaluate.files import measure_files
from pyarctic.optimizing.evaluate.health import Health, table_points, with_health
from pyarctic.optimizing.evaluate.partitions import measure_partitions
from pyarctic.optimizing.evaluate.rules import CAUSES, RULES
from pyarctic.optimizing.observe.observation import Observation, observe
from pyarctic.optimizing.protocol.task import OPTIMIZING_KINDS
from pyarctic.tables import Table


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """The data files (`files`) and the partitions of a table, with everything that was measured."""

    observation: Observation
    files: pl.DataFrame
    partitions: pl.DataFrame

    @cached_property
    def dangling_deletes(self) -> pl.DataFrame:
        """Delete files that apply to no data file."""
        return self.observation.matches.unused()

    @cached_property
    def health(self) -> Health:
        """The health of the table, and what it lost points for."""
        points = table_points(self.partitions, self.observation.settings)
        return Health(
            score=round(points["health"], 1),
            small_files=round(points["small_files_points"], 1),
            equality_deletes=round(points["equality_deletes_points"], 1),
            position_deletes=round(points["position_deletes_points"], 1),
            deductions=deductions_of(self.partitions, self.observation, points),
        )


def evaluate_table(table: Table, now: datetime | None = None) -> Evaluation | None:
    """Observe and evaluate a table; None if it is empty."""
    observation = observe(table, now)
    return None if observation is None else evaluate(observation)


def evaluate(observation: Observation) -> Evaluation:
    """Measure files and partitions, and choose minor, major or full for each partition that needs it."""
    files = measure_files(observation)
    partitions = measure_partitions(files, observation)
    for rule in RULES:
        partitions = partitions.with_columns(**rule.columns(observation.settings, observation.now))
    partitions = with_health(partitions.with_columns(kind=_chosen_kind(), causes=CAUSES), observation.settings)
    return Evaluation(observation=observation, files=files, partitions=partitions)


def _chosen_kind() -> pl.Expr:
    """The most thorough kind that a rule calls for: each kind does what the lesser ones would do."""
    choice = pl.lit(None, pl.String)
    for kind in OPTIMIZING_KINDS:
        is_met = pl.any_horizontal(pl.col(f"{rule.name}_met") for rule in RULES if rule.kind == kind)
        choice = pl.when(is_met).then(pl.lit(kind)).otherwise(choice)
    return choice
