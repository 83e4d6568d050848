"""Moving files of former partition specs to the current one: into how many partitions, and whether that makes more files.

A file of a former spec is as good as any other. Its rows are moved only by full optimizing, and only if the partition is not
expected to have more files afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.optimizing.evaluate.files import HAS_DELETES
from pyarctic.optimizing.observe.destinations import (
    NULL_VALUE,
    destination_fields,
    exact_column,
    field_step,
    high_column,
    low_column,
    null_column,
    values_column,
)
from pyarctic.optimizing.observe.observation import Observation


def moving_partitions(files: pl.DataFrame, observation: Observation, lost: pl.DataFrame) -> pl.DataFrame:
    """The partitions of former specs that full optimizing moves to the current spec. Files that full optimizing has left in
    a former spec are left there as long as no others come. Rows of `lost` partitions cannot be written to them again, so
    they are moved only if that is certain to make no more files."""
    spec_id = observation.metadata.default_spec_id
    of_former = files.filter(pl.col("spec_id") != spec_id)
    if observation.destinations is None or of_former.is_empty():
        return files.select(PARTITION_KEY).clear()
    of_former = of_former.join(observation.destinations, on="file_path", how="left", maintain_order="left")
    totals = of_former.group_by(PARTITION_KEY, maintain_order=True).agg(
        files=pl.len(),
        bytes=pl.col("file_size_bytes").sum(),
        has_stayed=(pl.col("full_spec_id") == spec_id).fill_null(value=False).all(),
    )
    counts = count_destinations(of_former, PARTITION_KEY, observation.metadata)
    files_out = count_files(
        pl.when("is_lost").then("most").otherwise("expected"), pl.col("bytes"), observation.settings.target_bytes
    )
    return (
        totals.join(counts, on=PARTITION_KEY, maintain_order="left")
        .join(lost.with_columns(is_lost=pl.lit(value=True)), on=PARTITION_KEY, how="left", maintain_order="left")
        .filter((files_out <= pl.col("files")) & ~pl.col("has_stayed"))
        .select(PARTITION_KEY)
    )


def count_files(partitions: pl.Expr, size: pl.Expr, target_bytes: int) -> pl.Expr:
    """The number of files that rows of this size make in so many partitions."""
    return partitions * (size / partitions / target_bytes).round().clip(lower_bound=1)


def count_destinations(files: pl.DataFrame, by: Sequence[str], metadata: TableMetadata) -> pl.DataFrame:
    """For each group of files the number of partitions of the current spec that their rows belong to: `least`, `expected`
    and `most`. Files have the columns of `destinations`."""
    numbers = range(destination_fields(metadata))
    if not numbers:
        return (
            files.select(by)
            .unique(maintain_order=True)
            .with_columns(least=pl.lit(1.0), expected=pl.lit(1.0), most=pl.lit(1.0))
        )
    field_most = [_most_values(number, field_step(metadata, number)) for number in numbers]
    values = [pl.col(values_column(number)) for number in numbers]
    is_single = pl.all_horizontal(each == 1 for each in values)
    single = pl.struct(pl.col(low_column(number)).fill_null(NULL_VALUE) for number in numbers).filter(is_single)
    counts = files.group_by(by, maintain_order=True).agg(
        *(most.alias(f"most_{number}") for number, most in enumerate(field_most)),
        of_files=_product(values).sum(),
        rows=pl.col("record_count").sum().cast(pl.Float64),
        distinct=single.n_unique().cast(pl.Float64),
        bounds=pl.max_horizontal(_distinct_bounds(number) for number in numbers).cast(pl.Float64),
        is_single=is_single.all(),
        has_deletes=HAS_DELETES.any(),
    )
    all_most = [pl.col(f"most_{number}") for number in numbers]
    most = pl.min_horizontal(_product(all_most), "of_files", "rows").clip(lower_bound=1)
    # Rows that are spread at random leave some partitions empty if there are few rows. Nothing is known of values without
    # bounds; mostly there are few, since they are chosen for partitions.
    likely = _product([pl.when(each.is_infinite()).then(1.0).otherwise(each) for each in all_most]).clip(lower_bound=1)
    likely = likely * (1 - (1 - 1 / likely).pow(pl.col("rows")))
    distinct = pl.max_horizontal("distinct", "bounds", pl.lit(1.0))
    least = pl.when("has_deletes").then(1.0).otherwise(distinct)
    return counts.select(
        *by,
        least=least,
        expected=pl.when("is_single").then(distinct).otherwise(likely.clip(distinct, most)),
        most=pl.when("is_single").then(distinct).otherwise(most),
    )


def _most_values(number: int, step: int | None) -> pl.Expr:
    """The number of values of a field in a group of files, at most."""
    of_files = pl.col(values_column(number)).sum()
    if step is None:
        return of_files
    low, high = (pl.col(name(number)).cast(pl.Float64) for name in (low_column, high_column))
    is_unknown = pl.col(values_column(number)).is_infinite().any()
    in_range = ((high.max() - low.min()) / step + 1).fill_null(0) + pl.col(null_column(number)).any()
    return pl.when(is_unknown).then(float("inf")).otherwise(pl.min_horizontal(of_files, in_range))


def _distinct_bounds(number: int) -> pl.Expr:
    """The number of values of a field that are bounds of files, so that there are rows with them."""
    low, high = (pl.col(name(number)).filter(exact_column(number)).drop_nulls() for name in (low_column, high_column))
    return low.append(high).n_unique()


def _product(factors: Sequence[pl.Expr]) -> pl.Expr:
    product = pl.lit(1.0)
    for factor in factors:
        product = product * factor
    return product
