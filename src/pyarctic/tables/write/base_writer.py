"""Rows straight into Base: a load or an overwrite of the whole table or of whole partitions.

It begins a transaction: an empty commit to the change store, whose sequence number becomes the transaction of the new files,
and how far the partitions they replace are merged. So it hides every change of those partitions that was committed before it
began, and none that comes later.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, BoundIsNull, BoundPredicate, Or
from pyiceberg.expressions.visitors import residual_evaluator_of, rewrite_not
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from pyarctic.errors import Unsupported, UsageError
from pyarctic.iceberg import partition_values, remove_quietly
from pyarctic.iceberg.delete import KeyColumns, Positions, hash_rows
from pyarctic.iceberg.manifest import FileList, PartitionDecoder
from pyarctic.iceberg.predicate import bind_condition, parse_condition
from pyarctic.iceberg.read import TableView, read_file_batches
from pyarctic.iceberg.write import NewFile, write_position_deletes
from pyarctic.tables.format.file_names import Place, StoreFileNames, StorePaths, StoreTarget, parse_file_names
from pyarctic.tables.format.store_properties import BASE_BUCKETS, key_ids, key_names, tree_mask
from pyarctic.tables.write.arrow_rows import check_keys, fit_to_schema, key_frame, to_batches
from pyarctic.tables.write.fanout import Fanout

Replace = Literal["table", "partitions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverwriteScope:
    """What an overwrite replaces: everything, the partitions its rows belong to, or those that a condition selects."""

    replace: Replace = "table"
    condition: BooleanExpression | None = None

    def partitions(self, metadata: TableMetadata, files: pl.DataFrame, new: Set[Place]) -> set[tuple[int, str]]:
        """The partitions (spec and key) among those of the files that are replaced. `new`: those that get rows."""
        paths = StorePaths(metadata)
        known = [(spec_id, key) for spec_id, key in files.select("spec_id", "partition").unique().iter_rows()]
        if self.condition is not None:
            return {place for place in known if self.selects(metadata, place[0], paths.values(*place))}
        if self.replace == "table":
            return set(known)
        return {place for place in known if paths.place_of(place[0], paths.values(*place)) in new}

    def selects(self, metadata: TableMetadata, spec_id: int, values: tuple[Any, ...]) -> bool:
        """Whether the condition selects a partition; it must take all of it or nothing."""
        assert self.condition is not None  # noqa: S101
        spec = metadata.specs()[spec_id]
        told = zip(spec.fields, values, strict=True)
        nulls = {f.source_id for f, value in told if value is None and not isinstance(f.transform, VoidTransform)}
        condition = _where_null(rewrite_not(self.condition), nulls)
        evaluator = residual_evaluator_of(spec, condition, case_sensitive=True, schema=metadata.schema())
        residual = evaluator.residual_for(Record(*values))
        if isinstance(residual, AlwaysTrue | AlwaysFalse):
            return isinstance(residual, AlwaysTrue)
        path = PartitionDecoder(metadata).path_of(spec_id, values)
        raise UsageError(
            f"the condition selects a part of partition {path!r}" if path else "the table is not partitioned",
            hint="An overwrite replaces whole partitions. Use mode delete or upsert for single rows.",
        )


def _where_null(condition: BooleanExpression, columns: Set[int]) -> BooleanExpression:
    """What is left of a condition without NOT where some columns are null: of null all but `is null` is not true. (PyIceberg
    fails to compare null with numbers, and finds it different from any.)"""
    match condition:
        case And():
            return And(_where_null(condition.left, columns), _where_null(condition.right, columns))
        case Or():
            return Or(_where_null(condition.left, columns), _where_null(condition.right, columns))
        case BoundPredicate() if condition.term.ref().field.field_id in columns:
            return AlwaysTrue() if isinstance(condition, BoundIsNull) else AlwaysFalse()
    return condition


def parse_overwrite_scope(metadata: TableMetadata, replace: str, where: str | BooleanExpression | None) -> OverwriteScope:
    if replace not in ("table", "partitions"):
        raise UsageError(f"unknown scope of an overwrite: {replace!r}", hint="One of: table, partitions.")
    if where is None:
        return OverwriteScope(replace="table" if replace == "table" else "partitions")
    if replace != "table":
        raise UsageError("an overwrite replaces touched partitions or those of a condition, not both")
    return OverwriteScope(condition=bind_condition(metadata.schema(), parse_condition(metadata.schema(), where)))


@dataclass(frozen=True, kw_only=True)
class BaseWriter:
    """Writes rows as files of Base, or of a table without a key; nothing is committed. It can be sent elsewhere: several may
    share a load if no key comes to two of them."""

    view: TableView
    scope: OverwriteScope
    transaction_id: int = 0

    def files(self, data: Any, names: StoreFileNames | None = None) -> list[NewFile]:
        """Of several rows with one key the last one counts."""
        view, metadata = self.view, self.view.metadata
        keys = key_names(metadata)
        mask = tree_mask(metadata.properties, BASE_BUCKETS) if keys else 0
        names = names or StoreFileNames()
        twins = _Twins(view, names) if keys else None
        with Fanout(view, mask=mask, transaction_id=self.transaction_id, names=names) as out:
            for batch in to_batches(data):
                rows = fit_to_schema(batch, metadata.schema())
                check_keys(rows, keys)
                if twins is not None:
                    twins.add(rows)
                places = out.places(rows)
                if self.scope.condition is not None:
                    _refuse_outside(metadata, self.scope, places.tuples)
                out.write(rows, places, {"B": None})
        files = [*out.files]
        try:
            if twins is not None:
                files.extend(twins.deletes(out.files, self.transaction_id))
        except BaseException:
            remove_quietly(view.io, [file.path for file in files])
            raise
        return files


def check_first_batch(view: TableView, data: Any, scope: OverwriteScope) -> Iterator[pa.RecordBatch]:
    """The batches of some data, of which the first was looked at: it fits the table and the scope."""
    metadata = view.metadata
    batches = to_batches(data)
    first = list(itertools.islice(batches, 1))
    for batch in first:
        rows = fit_to_schema(batch, metadata.schema())
        check_keys(rows, key_names(metadata))
        if scope.condition is not None:
            _refuse_outside(metadata, scope, partition_values(metadata.spec(), metadata.schema(), rows)[1])
    return itertools.chain(first, batches)


def _refuse_outside(metadata: TableMetadata, scope: OverwriteScope, tuples: list[tuple[Any, ...]]) -> None:
    spec_id = metadata.default_spec_id
    for values in tuples:
        if not scope.selects(metadata, spec_id, values):
            path = PartitionDecoder(metadata).path_of(spec_id, values)
            raise UsageError(
                f"rows belong to partition {path!r}, which the condition does not select",
                hint="Filter the rows, or widen the condition.",
            )


def partitions_of(metadata: TableMetadata, files: Sequence[NewFile]) -> frozenset[Place]:
    """The partitions that get rows by new files."""
    paths = StorePaths(metadata)
    return frozenset(paths.place_of(file.spec_id, file.partition) for file in files)


def find_replaced_files(metadata: TableMetadata, files: FileList, scope: OverwriteScope, new: Set[Place]) -> pl.DataFrame:
    """The files of Base that go: of the replaced partitions, data and deletes. `new`: the partitions that get rows."""
    frame = files.frame()
    places = scope.partitions(metadata, frame, new)
    chosen = pl.DataFrame(sorted(places), schema={"spec_id": pl.Int32, "partition": pl.String}, orient="row")
    return frame.join(chosen, on=["spec_id", "partition"], how="semi", maintain_order="left")


def merged_by_overwrite(
    metadata: TableMetadata,
    removed: pl.DataFrame,
    changes: pl.DataFrame,
    scope: OverwriteScope,
    new: Set[Place],
    transaction_id: int,
) -> dict[str, int]:
    """Partition path → merged sequence after the overwrite, of all partitions it replaces: also those that had nothing but
    changes."""
    paths = StorePaths(metadata)
    places = scope.partitions(metadata, changes, new)
    places |= {(spec_id, key) for spec_id, key in removed.select("spec_id", "partition").unique().iter_rows()}
    found = {paths.place_of(spec_id, paths.values(spec_id, key)) for spec_id, key in places} | new
    merged = dict.fromkeys(sorted({path for path, _ in found}), transaction_id)
    for spec_id, key in changes.select("spec_id", "partition").unique().iter_rows():
        place = paths.place_of(spec_id, paths.values(spec_id, key))
        if place[0] in merged and place not in found:
            raise Unsupported(
                f"partition {place[0]!r} stands for null and for the text 'null', and only one of them is replaced",
                hint="The format cannot tell what was merged into which. Overwrite both.",
            )
    return merged


class _Twins:
    """Keys that come twice in one load. Rows are written as they come; of every key it is remembered by a hash that it came.
    Only where hashes repeat, the keys themselves are read back and compared, and all rows but the last are deleted."""

    def __init__(self, view: TableView, names: StoreFileNames) -> None:
        self._view = view
        self._file_names = names
        metadata = view.metadata
        self._names = list(key_names(metadata))
        self._keys = KeyColumns.of(key_ids(metadata), [metadata.schema()], view.name)
        self._hashes: list[np.ndarray[Any, np.dtype[np.uint64]]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._hashes.append(hash_rows(key_frame(rows, self._names)).to_numpy())

    def deletes(self, files: list[NewFile], transaction_id: int) -> Iterator[NewFile]:
        """Position deletes of the rows that are not the last with their key in their partition."""
        if not self._hashes:
            return
        hashes = np.sort(np.concatenate(self._hashes))
        repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        if not len(repeated):
            return
        nodes = parse_file_names(_listed(files), "base")
        for (_, node), group in nodes.group_by("place", "node_id", maintain_order=True):
            dead = self._dead([files[number] for number in group["number"]], repeated)
            if dead:
                first = files[group["number"][0]]
                target = StoreTarget(
                    metadata=self._view.metadata,
                    io=self._view.io,
                    spec_id=first.spec_id,
                    partition=first.partition,
                    names=self._file_names,
                    node_id=int(str(node)),
                    kind="PD",
                    transaction_id=transaction_id,
                )
                yield write_position_deletes(target, dead)

    def _dead(self, files: list[NewFile], repeated: np.ndarray[Any, np.dtype[np.uint64]]) -> dict[str, Positions]:
        """Files of one place, in the order they were written: positions of rows with a later twin."""
        parts = []
        for number, file in enumerate(files):
            for piece in read_file_batches(self._view.io, file.path, file.file_format, None, self._keys.top_level_ids):
                keys = self._keys.frame(piece, {})
                hashes = hash_rows(key_frame(piece.batch, self._names)).to_numpy()
                chosen = np.flatnonzero(np.isin(hashes, repeated))
                at = [pl.Series("file", np.full(len(chosen), number)), pl.Series("position", chosen + piece.position)]
                parts.append(keys[chosen].with_columns(at))
        found = pl.concat(parts)
        names = [name for name in found.columns if name not in ("file", "position")]
        last = pl.int_range(pl.len()).over(names) == pl.len().over(names) - 1
        dead = found.sort("file", "position").filter(~last)
        return {
            files[int(str(number))].path: rows["position"].sort().to_numpy()
            for (number,), rows in dead.group_by("file", maintain_order=True)
        }


def _listed(files: list[NewFile]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "file_path": [file.path for file in files],
            "number": range(len(files)),
            "place": [PartitionDecoder.key_of(file.partition) for file in files],
        }
    )
