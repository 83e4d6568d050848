"""What an overwrite replaces: the complete table, or complete partitions."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, BoundIsNull, BoundPredicate, Or
from pyiceberg.expressions.visitors import residual_evaluator_of, rewrite_not
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from pyarctic.errors import Unsupported, UsageError
from pyarctic.iceberg.delete import PARTITION_KEY
from pyarctic.iceberg.manifest import FileList, PartitionDecoder
from pyarctic.iceberg.predicate import bind_condition, parse_condition
from pyarctic.iceberg.write import NewFile
from pyarctic.tables.format.file_names import PartitionId, StorePaths

Replace = Literal["table", "partitions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverwriteScope:
    """What an overwrite replaces: everything, the partitions its rows belong to, or those that a condition selects."""

    replace: Replace = "table"
    condition: BooleanExpression | None = None

    def partitions(self, metadata: TableMetadata, files: pl.DataFrame, written: Set[PartitionId]) -> set[tuple[int, str]]:
        """The partitions (spec and key) of the files that are replaced. `written`: the partitions that get rows."""
        paths = StorePaths(metadata)
        partitions = [(spec_id, key) for spec_id, key in files.select(PARTITION_KEY).unique().iter_rows()]
        if self.condition is not None:
            return {(spec, key) for spec, key in partitions if self.selects(metadata, spec, paths.values(spec, key))}
        if self.replace == "table":
            return set(partitions)
        return {(spec, key) for spec, key in partitions if paths.partition_id(spec, paths.values(spec, key)) in written}

    def selects(self, metadata: TableMetadata, spec_id: int, values: tuple[Any, ...]) -> bool:
        """Whether the condition selects a partition; it must select all of its rows or none."""
        if self.condition is None:
            return True
        spec = metadata.specs()[spec_id]
        fields = zip(spec.fields, values, strict=True)
        nulls = {f.source_id for f, value in fields if value is None and not isinstance(f.transform, VoidTransform)}
        condition = _resolve_nulls(rewrite_not(self.condition), nulls)
        evaluator = residual_evaluator_of(spec, condition, case_sensitive=True, schema=metadata.schema())
        residual = evaluator.residual_for(Record(*values))
        if isinstance(residual, AlwaysTrue | AlwaysFalse):
            return isinstance(residual, AlwaysTrue)
        path = PartitionDecoder(metadata).path_of(spec_id, values)
        raise UsageError(
            f"the condition selects a part of partition {path!r}" if path else "the table is not partitioned",
            hint="An overwrite replaces complete partitions. Use mode delete or upsert for single rows.",
        )

    def check_rows(self, metadata: TableMetadata, partitions: Sequence[tuple[Any, ...]]) -> None:
        """Refuse rows of partitions that the condition does not select."""
        spec_id = metadata.default_spec_id
        for values in partitions:
            if not self.selects(metadata, spec_id, values):
                path = PartitionDecoder(metadata).path_of(spec_id, values)
                raise UsageError(
                    f"rows belong to partition {path!r}, which the condition does not select",
                    hint="Filter the rows, or widen the condition.",
                )


def _resolve_nulls(condition: BooleanExpression, columns: Set[int]) -> BooleanExpression:
    """A condition without NOT, where some columns are null: only `is null` is true of them. (PyIceberg fails to compare null
    with numbers, and takes it for different from any value.)"""
    match condition:
        case And():
            return And(_resolve_nulls(condition.left, columns), _resolve_nulls(condition.right, columns))
        case Or():
            return Or(_resolve_nulls(condition.left, columns), _resolve_nulls(condition.right, columns))
        case BoundPredicate() if condition.term.ref().field.field_id in columns:
            return AlwaysTrue() if isinstance(condition, BoundIsNull) else AlwaysFalse()
    return condition


def parse_overwrite_scope(metadata: TableMetadata, replace: str, where: str | BooleanExpression | None) -> OverwriteScope:
    """The scope of an overwrite by its options: `replace` is "table" or "partitions", `where` selects partitions."""
    if replace not in ("table", "partitions"):
        raise UsageError(f"unknown scope of an overwrite: {replace!r}", hint="One of: table, partitions.")
    if where is None:
        return OverwriteScope(replace="table" if replace == "table" else "partitions")
    if replace != "table":
        raise UsageError("an overwrite replaces touched partitions or those of a condition, not both")
    return OverwriteScope(condition=bind_condition(metadata.schema(), parse_condition(metadata.schema(), where)))


def written_partitions(metadata: TableMetadata, files: Sequence[NewFile]) -> frozenset[PartitionId]:
    """The partitions that get rows by new files."""
    paths = StorePaths(metadata)
    return frozenset(paths.partition_id(file.spec_id, file.partition) for file in files)


def find_replaced_files(
    metadata: TableMetadata, files: FileList, scope: OverwriteScope, written: Set[PartitionId]
) -> pl.DataFrame:
    """The data and delete files of the replaced partitions. `written`: the partitions that get rows."""
    frame = files.frame()
    partitions = sorted(scope.partitions(metadata, frame, written))
    replaced = pl.DataFrame(partitions, schema={"spec_id": pl.Int32, "partition": pl.String}, orient="row")
    return frame.join(replaced, on=PARTITION_KEY, how="semi", maintain_order="left")


def merged_by_overwrite(
    metadata: TableMetadata,
    removed: pl.DataFrame,
    changes: pl.DataFrame,
    scope: OverwriteScope,
    written: Set[PartitionId],
    transaction_id: int,
) -> dict[str, int]:
    """Partition path → merged sequence after the overwrite, of all partitions it replaces, also of those that had only
    changes."""
    paths = StorePaths(metadata)
    replaced = scope.partitions(metadata, changes, written)
    replaced |= {(spec_id, key) for spec_id, key in removed.select(PARTITION_KEY).unique().iter_rows()}
    partition_ids = {paths.partition_id(spec_id, paths.values(spec_id, key)) for spec_id, key in replaced} | written
    merged = dict.fromkeys(sorted({path for path, _ in partition_ids}), transaction_id)
    for spec_id, key in changes.select(PARTITION_KEY).unique().iter_rows():
        partition_id = paths.partition_id(spec_id, paths.values(spec_id, key))
        path = partition_id[0]
        if path in merged and partition_id not in partition_ids:
            raise Unsupported(
                f"partition {path!r} stands for null and for the text 'null', and only one of them is replaced",
                hint="The format cannot tell which of them was merged. Overwrite both.",
            )
    return merged
