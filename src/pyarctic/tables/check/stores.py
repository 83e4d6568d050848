"""Whether the two stores of a keyed table fit each other: specs, schemas, merged sequences, and what files they have."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import Damaged, Unsupported
from pyarctic.iceberg.check import Problem, problem_frame, problems_of
from pyarctic.iceberg.manifest import EQUALITY_DELETES, IS_DATA
from pyarctic.iceberg.read import TableView
from pyarctic.tables.evolve import are_equal
from pyarctic.tables.format.file_names import Store, field_names_of
from pyarctic.tables.format.merged_sequence import merged_sequences
from pyarctic.tables.format.store_properties import check_spec, key_names


def check_stores(base: TableView, change: TableView) -> pl.DataFrame:
    """The problems of both stores together."""
    problems = [*_check_key(base.metadata), *_check_specs(base, change), *_check_schemas(base.metadata, change.metadata)]
    return problem_frame([*problems, *_check_merged_sequences(base, change)])


def _check_key(base: TableMetadata) -> Iterator[Problem]:
    try:
        key_names(base)
    except Damaged as error:
        yield Problem("missing-key-columns", error.message)


def _check_specs(base: TableView, change: TableView) -> Iterator[Problem]:
    try:
        check_spec(base.metadata, change.metadata)
    except Unsupported as error:
        yield Problem("different-specs", error.message)


def _check_schemas(base: TableMetadata, change: TableMetadata) -> Iterator[Problem]:
    if are_equal(base.schema(), change.schema()):
        return
    is_behind = any(are_equal(change.schema(), schema) for schema in base.schemas)
    if is_behind and change.last_column_id <= base.last_column_id:
        yield Problem("schema-behind", f"it has the columns {', '.join(change.schema().column_names)}")
        return
    columns = (", ".join(metadata.schema().column_names) for metadata in (base, change))
    yield Problem("different-schemas", " and ".join(columns))


def _check_merged_sequences(base: TableView, change: TableView) -> Iterator[Problem]:
    try:
        merged = merged_sequences(base.metadata, base.io, base.metadata.current_snapshot())
    except (Damaged, ValueError) as error:  # a property of older tables may be no JSON
        path = error.facts.get("file") if isinstance(error, Damaged) else None
        yield Problem("merged-sequences-lost", str(error), path)
        return
    last = getattr(change.metadata, "last_sequence_number", 0)
    specs = [field_names_of(spec) for spec in base.metadata.specs().values()]
    for path, sequence in merged.items():
        if sequence > last:
            detail = f"partition {path!r} is merged up to {sequence}, the last commit of the change store is {last}"
            yield Problem("merged-too-far", detail)
        if [part.partition("=")[0] for part in path.split("/") if path] not in specs:
            yield Problem("unknown-partition", f"{path!r}")


def check_contents(files: pl.DataFrame, metadata: TableMetadata, store: Store) -> pl.DataFrame:
    """Whether a store has only files that its format allows: the base store no equality deletes, the change store no deletes
    at all, and both only the current partition spec."""
    forbidden = (pl.col("content") == EQUALITY_DELETES) if store == "base" else ~IS_DATA
    rows = pl.col("record_count")
    deletes = problems_of(files.filter(forbidden), "forbidden-deletes", pl.format("{} rows", rows), rows)
    other_spec = files.filter(pl.col("spec_id") != metadata.default_spec_id)
    detail = pl.format(f"partition spec {{}} instead of {metadata.default_spec_id}", "spec_id")
    return pl.concat([deletes, problems_of(other_spec, "different-specs", detail, rows)])
