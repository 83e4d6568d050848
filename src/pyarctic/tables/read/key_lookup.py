"""Reading some keys only: which files may hold them, by the nodes of their hashes and by bounds of the key columns.

All versions of a key have the same key, so what a condition demands of the key columns holds for all of them or for none.
A file that cannot hold a wanted key is of no use to a read, in whichever store it is. Conditions on other columns are
different: the latest version may miss one that an older version meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType

from pyarctic.iceberg.manifest import FileList
from pyarctic.iceberg.predicate import (
    ALWAYS_TRUE,
    allowed_values,
    bind_condition,
    prune_by_metrics,
    restrict_condition,
    with_optional_parents,
)
from pyarctic.iceberg.read import TableView, arrow_type
from pyarctic.tables.format.file_names import Store, parse_file_names
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.format.tree import ROOT, Hashes, select_nodes
from pyarctic.tables.read.key_groups import with_key_ranges

_MAX_KEYS = 10_000
"""So many keys are in all nodes anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """The wanted keys of a read."""

    key: PrimaryKey
    schema: Schema
    condition: BooleanExpression
    """What the keys must meet."""
    hashes: Hashes | None
    """Of all keys that may meet it; None if they are not listed."""

    @classmethod
    def of(cls, key: PrimaryKey, schema: Schema, condition: BooleanExpression) -> Self:
        if condition == ALWAYS_TRUE:
            return cls(key=key, schema=schema, condition=condition, hashes=None)
        of_keys = restrict_condition(schema, condition, {field.field_id for field in key.fields})
        bound = bind_condition(schema, of_keys)
        values = [allowed_values(bound, field.field_id) for field in key.fields]
        return cls(key=key, schema=schema, condition=of_keys, hashes=_hash_keys(key, values))

    def select_files(self, files: pl.DataFrame, listed: FileList, io: FileIO) -> pl.DataFrame:
        """The files that may hold a wanted key. `files` have the facts of their names, `listed` has their metrics."""
        if self.hashes is not None:
            files = select_nodes(files, self.hashes)
        return self.select_by_bounds(files, listed, io)

    def select_by_bounds(self, files: pl.DataFrame, listed: FileList, io: FileIO) -> pl.DataFrame:
        """The files whose bounds may hold a wanted key."""
        if self.condition == ALWAYS_TRUE or files.is_empty():
            return files
        schema = with_optional_parents(self.schema)
        return prune_by_metrics(files, listed, io, schema, bind_condition(schema, self.condition))

    def select_nodes_of(
        self, store: Store, data: pl.DataFrame, view: TableView, listed: FileList, stores: Iterable[TableMetadata]
    ) -> pl.DataFrame:
        """The data files of one store whose nodes may hold a wanted key. `stores`: the metadata of both."""
        if self.hashes is None or data.is_empty():
            return data
        named = parse_file_names(with_key_ranges(data, listed, view.io, self.key.fields), store)
        return select_nodes(ignore_nodes_if_widened(self.key, stores, [named])[0], self.hashes).select(data.columns)


def ignore_nodes_if_widened(
    key: PrimaryKey, stores: Iterable[TableMetadata], frames: Sequence[pl.DataFrame]
) -> Sequence[pl.DataFrame]:
    """Files with their key ranges; with all of them in the root of the tree if keys have got other hashes since."""
    if not key.was_widened(stores, frames):
        return frames
    return [files.with_columns(node_id=pl.lit(ROOT.id, pl.Int64)) for files in frames]


def _hash_keys(key: PrimaryKey, values: Sequence[set[Any] | None]) -> Hashes | None:
    types = [field.field_type for field in key.fields]
    listed = [allowed for allowed in values if allowed is not None]
    # 0.0 equals -0.0 and has another hash.
    is_listed = len(listed) == len(types) and not any(isinstance(type_, FloatType | DoubleType) for type_ in types)
    if not is_listed or prod(map(len, listed)) > _MAX_KEYS:
        return None
    keys = list(product(*listed))
    if not keys:
        return np.empty(0, np.int32)
    columns = [pa.array(column, arrow_type(type_)) for column, type_ in zip(zip(*keys, strict=True), types, strict=True)]
    return key_hashes(columns, types)
