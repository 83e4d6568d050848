"""How well a table's partitions are, and what each of them needs. Pure: the same observation gives the same answer.

Everything is a column of one frame with a row for each partition: a table may have a hundred thousand of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.delete import EQUALITY, FILE_SCOPED, GLOBAL_EQUALITY, PARTITION_KEY, PARTITION_SCOPED, DeleteMatches
from pyarctic.optimizing.evaluate.rules import CAUSES, RULES, SHAPE
from pyarctic.optimizing.observe.changes import PendingChanges
from pyarctic.optimizing.order.overlaps import with_overlaps
from pyarctic.optimizing.order.sort_order import Order
from pyarctic.optimizing.settings import Settings
from pyarctic.tables.format import ROOT, parse_file_names

SMALL_FILES_WEIGHT, EQUALITY_WEIGHT, POSITION_WEIGHT = 40, 40, 20
_DEAD_SHARE_AT_WORST = 0.25
TOO_LARGE = 1.5
"""More than what is written on purpose: sizes are known only afterwards, and what is judged too large is written again."""
_TOO_LARGE_IN_Z_ORDER = 2.5
"""Files in z-order are divided by rows, and not by what they come to."""
_POSITION_BYTES = 3
"""About what a deleted key takes as a position."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """A table at one moment: all that a decision may depend on."""

    table: str
    metadata: TableMetadata
    snapshot_id: int | None
    """None: the table has none. A keyed one may still have changes."""
    settings: Settings
    matches: DeleteMatches
    """The data files with their deletes."""
    times: pl.DataFrame
    """As `history.SNAPSHOT_TIMES`."""
    activity: pl.DataFrame
    """As `history.ACTIVITY`."""
    now: datetime
    order: Order | None = None
    """How the rows of partitions are to be sorted."""
    reach: pl.DataFrame | None = None
    """As `reach.reach`, if the order has dimensions."""
    changes: PendingChanges | None = None
    """Of a keyed table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """The answer. `files` are the data files, `partitions` has a row for each partition, both with everything measured."""

    observation: Observation
    files: pl.DataFrame
    partitions: pl.DataFrame

    @cached_property
    def dangling_deletes(self) -> pl.DataFrame:
        """Delete files that hit nothing."""
        return self.observation.matches.unused()

    @cached_property
    def health(self) -> dict[str, float]:
        """0 to 100 for the whole table, and what each part takes away."""
        totals = self.partitions.select(pl.col(SHAPE).sum())
        return {name: float(value) for name, value in totals.select(**health_parts()).row(0, named=True).items()}


def evaluate(observation: Observation) -> Evaluation:
    """Measure files and partitions, and choose minor, major or full for each partition that needs it."""
    files = _measured_files(observation)
    partitions = _measured_partitions(files, observation)
    partitions = partitions.with_columns(**health_parts())
    for rule in RULES:
        partitions = partitions.with_columns(**rule.columns(observation.settings, observation.now))
    partitions = partitions.with_columns(kind=choose_kind(), causes=CAUSES)
    return Evaluation(observation=observation, files=files, partitions=partitions)


def choose_kind() -> pl.Expr:
    """The thorough kinds first: each does what the ones after it would do."""
    choice = pl.lit(None, pl.String)
    for kind in ("minor", "major", "full"):
        met = pl.any_horizontal(pl.col(f"{rule.name}_met") for rule in RULES if rule.kind == kind)
        choice = pl.when(met).then(pl.lit(kind)).otherwise(choice)
    return choice


def health_parts() -> dict[str, pl.Expr]:
    """Health and its parts, from columns of SHAPE."""
    files, rows = pl.col("data_files").cast(pl.Float64), pl.col("records").cast(pl.Float64)
    small = SMALL_FILES_WEIGHT * (pl.col("excess_files") / files)
    equality = EQUALITY_WEIGHT * (pl.col("checked_rows") / rows)
    position = POSITION_WEIGHT * (pl.col("dead_rows") / rows / _DEAD_SHARE_AT_WORST)
    parts = {
        "small_files_penalty": small.clip(0, SMALL_FILES_WEIGHT),
        "equality_deletes_penalty": equality.clip(0, EQUALITY_WEIGHT),
        "position_deletes_penalty": position.clip(0, POSITION_WEIGHT),
    }
    parts = {name: part.fill_nan(0).fill_null(0) for name, part in parts.items()}
    return {"health": 100 - pl.sum_horizontal(parts.values()), **parts}


def _measured_files(observation: Observation) -> pl.DataFrame:
    """The data files with their size class, the deletes that hit them, and when they came."""
    matches, settings = observation.matches, observation.settings
    size = pl.col("file_size_bytes")
    is_fragment, is_small = size < settings.fragment_bytes, size < settings.min_target_bytes
    measured = matches.data.with_columns(
        is_fragment=is_fragment,
        is_small=is_small,
        equality_files=_width(EQUALITY) + _width(GLOBAL_EQUALITY),
        equality_bytes=_in_range(matches, EQUALITY, size) + _in_range(matches, GLOBAL_EQUALITY, size),
        equality_records=_in_range(matches, EQUALITY, pl.col("record_count"))
        + _in_range(matches, GLOBAL_EQUALITY, pl.col("record_count")),
        own_position_files=_width(FILE_SCOPED) + pl.col("vector").is_not_null().cast(pl.Int64),
        own_position_bytes=_in_range(matches, FILE_SCOPED, size) + _of_vector(matches, "content_size_bytes"),
        own_dead_rows=_in_range(matches, FILE_SCOPED, pl.col("record_count")) + _of_vector(matches, "record_count"),
        shared_position_files=_width(PARTITION_SCOPED),
        shared_position_bytes=_in_range(matches, PARTITION_SCOPED, size),
        shared_dead_rows=_in_range(matches, PARTITION_SCOPED, pl.col("record_count")),
    )
    oldest = observation.times["committed_at"].min()
    came = measured.join(observation.times, on="snapshot_id", how="left", maintain_order="left")
    came = came.with_columns(
        pl.col("committed_at").fill_null(pl.lit(oldest)), pl.col("optimized", "full").fill_null(value=False)
    )
    changes = observation.changes
    if changes is not None:
        came = parse_file_names(came, "base")
    came = came if changes and changes.has_nodes else came.with_columns(node_id=pl.lit(ROOT.id, pl.Int64))
    if observation.reach is None:
        return came.with_columns(overlap_depth=pl.lit(None, pl.Int64), overlap_set=pl.lit(None, pl.Int64))
    return with_overlaps(came, observation.reach, observation.metadata.default_spec_id, settings.overlap_depth)


def _width(kind: str) -> pl.Expr:
    return (pl.col(f"{kind}_to") - pl.col(f"{kind}_from")).clip(lower_bound=0)


def _in_range(matches: DeleteMatches, kind: str, value: pl.Expr) -> pl.Expr:
    """The sum of a value over the deletes of a kind that hit a file: a difference of two running sums."""
    running = pl.concat(
        [pl.Series([0], dtype=pl.Int64), matches.by_kind[kind].select(value.cum_sum().cast(pl.Int64)).to_series()]
    )
    start, end = pl.col(f"{kind}_from"), pl.max_horizontal(f"{kind}_from", f"{kind}_to")
    return pl.lit(running).gather(end) - pl.lit(running).gather(start)


def _of_vector(matches: DeleteMatches, column: str) -> pl.Expr:
    return pl.lit(matches.vectors[column].cast(pl.Int64)).gather(pl.col("vector")).fill_null(0)


def _measured_partitions(files: pl.DataFrame, observation: Observation) -> pl.DataFrame:
    size, settings = pl.col("file_size_bytes"), observation.settings
    small = pl.col("is_small")
    order, sort_order = observation.order, observation.metadata.default_sort_order_id
    by_sort_order = order is not None and order.sorts and not order.z_order
    current_order = pl.col("sort_order_id").fill_null(0) == sort_order if by_sort_order else pl.lit(value=True)
    is_deep = pl.col("overlap_set").is_not_null()
    too_large = TOO_LARGE if order is None or not order.z_order else _TOO_LARGE_IN_Z_ORDER
    grouped = files.group_by(PARTITION_KEY, maintain_order=True).agg(
        data_files=pl.len().cast(pl.Int64),
        records=pl.col("record_count").sum(),
        data_bytes=size.sum(),
        fragments=pl.col("is_fragment").sum().cast(pl.Int64),
        fragment_bytes=size.filter("is_fragment").sum(),
        small_files=small.sum().cast(pl.Int64),
        small_bytes=size.filter(small).sum(),
        large_files=(size > settings.target_bytes * too_large).sum().cast(pl.Int64),
        unsorted_files=(~current_order).sum().cast(pl.Int64),
        overlap_depth=pl.col("overlap_depth").max(),
        deep_files=is_deep.sum().cast(pl.Int64),
        deep_bytes=size.filter(is_deep).sum(),
        equality_files=pl.col("equality_files").max(),
        equality_bytes=pl.col("equality_bytes").max(),
        equality_records=pl.col("equality_records").max(),
        checked_rows=pl.col("record_count").filter(pl.col("equality_files") > 0).sum(),
        position_bytes=pl.col("own_position_bytes").sum() + pl.col("shared_position_bytes").max(),
        dead_rows=pl.min_horizontal(
            pl.col("own_dead_rows").sum() + pl.col("shared_dead_rows").max(), pl.col("record_count").sum()
        ),
        position_files=pl.col("own_position_files").sum() + pl.col("shared_position_files").max(),
        optimized_at=pl.col("committed_at").filter("optimized").max(),
        full_at=pl.col("committed_at").filter("full").max(),
        oldest_file_at=pl.col("committed_at").min(),
        oldest_fragment_at=pl.col("committed_at").filter(pl.col("is_fragment") & ~pl.col("optimized")).min(),
        newest_file_at=pl.col("committed_at").max(),
    )
    current_spec = observation.metadata.default_spec_id
    packing = grouped.join(_packing(files, settings), on=PARTITION_KEY, how="left", maintain_order="left")
    with_deletes = packing.join(_equality_since(observation), on=PARTITION_KEY, how="left", maintain_order="left")
    dead_share = (pl.col("dead_rows") + pl.col("equality_records")) / pl.col("records")
    measured = with_deletes.with_columns(
        excess_files=pl.col("packable_files"), change_files=pl.lit(0), change_bytes=pl.lit(0), delete_ratio=dead_share
    )
    if observation.changes is not None:
        measured = _with_changes(measured, observation.changes)
    with_writers = measured.join(observation.activity, on=PARTITION_KEY, how="left", maintain_order="left")
    waiting = pl.min_horizontal("oldest_fragment_at", pl.when(pl.col("checked_rows") > 0).then("equality_since"))
    return with_writers.with_columns(
        expected_position_bytes=pl.col("position_bytes") + _POSITION_BYTES * pl.col("equality_records"),
        waiting_since=pl.max_horizontal("optimized_at", waiting),
        is_current_spec=pl.col("spec_id") == current_spec,
        is_busy=pl.col("busy_until").is_not_null() & pl.lit(settings.writers_first),
    )


def _packing(files: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """How many files less there could be in each partition. Files of different nodes of the tree stay apart."""
    size, small = pl.col("file_size_bytes"), pl.col("is_small")
    ideal = (size.filter(small).sum() / settings.target_bytes).ceil().cast(pl.Int64)
    of_nodes = files.group_by(*PARTITION_KEY, "node_id").agg(
        packable_files=(small.sum().cast(pl.Int64) - ideal).clip(lower_bound=0),
        packable_fragments=(pl.col("is_fragment").sum().cast(pl.Int64) - 1).clip(lower_bound=0),
    )
    return of_nodes.group_by(PARTITION_KEY).agg(pl.col("packable_files", "packable_fragments").sum())


def _with_changes(base: pl.DataFrame, changes: PendingChanges) -> pl.DataFrame:
    """A keyed table's partitions. Changes that are not merged are to its rows what equality deletes are to those of other
    tables: all must be compared with them."""
    count = pl.col("change_files")
    counted = base.drop("change_files", "change_bytes")
    both = changes.measured().join(counted, on=PARTITION_KEY, how="left", maintain_order="left")
    numbers = [name for name, dtype in counted.schema.items() if dtype.is_numeric() and name not in PARTITION_KEY]
    both = both.with_columns(pl.col(numbers).fill_null(0))
    unmerged_share = pl.col("delete_bytes") / (pl.col("data_bytes") + pl.col("insert_bytes"))
    return both.with_columns(
        excess_files=pl.col("packable_files") + count,
        equality_files=count,
        equality_bytes=pl.col("delete_bytes"),
        equality_records=pl.col("delete_records"),
        equality_since=pl.col("changed_since"),
        checked_rows=pl.when(count > 0).then(pl.col("records") + pl.col("change_records")).otherwise(0),
        delete_ratio=pl.max_horizontal(unmerged_share, pl.col("dead_rows") / pl.col("records")).fill_nan(0),
        optimized_at=pl.max_horizontal("optimized_at", "merged_at"),
    )


def _equality_since(observation: Observation) -> pl.DataFrame:
    """Since when equality deletes wait in each partition. Global ones wait everywhere."""
    matches = observation.matches
    when = observation.times.select("snapshot_id", "committed_at")
    own = matches.by_kind[EQUALITY].join(when, on="snapshot_id", how="left")
    everywhere = matches.by_kind[GLOBAL_EQUALITY].join(when, on="snapshot_id", how="left")["committed_at"].min()
    partitions = matches.data.select(PARTITION_KEY).unique()
    since = own.group_by(PARTITION_KEY).agg(equality_since=pl.col("committed_at").min())
    return partitions.join(since, on=PARTITION_KEY, how="left").with_columns(
        equality_since=pl.min_horizontal("equality_since", pl.lit(everywhere, when.schema["committed_at"]))
    )
