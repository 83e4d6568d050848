"""Equality deletes apply by sequence number and partition. When rows move to another file, a delete must neither stop
applying to them nor start to.

The deletes that apply to a file are a contiguous range (see `iceberg.delete.matching`), so that ranges are compared to check
whether all deletes of one file apply to another.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from pyarctic.iceberg.commit.change import Change
from pyarctic.iceberg.commit.table_state import PLAN_AGAIN, ChangeRejected, TableState
from pyarctic.iceberg.delete.matching import EQUALITY, GLOBAL_EQUALITY, match_deletes
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY, IS_DATA
from pyarctic.iceberg.manifest.partition_keys import PARTITION_KEY
from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES

_KINDS = (EQUALITY, GLOBAL_EQUALITY)
_RANGES = [f"{kind}_{end}" for kind in _KINDS for end in ("from", "to")]


def check_equality_deletes(change: Change, state: TableState, since: pl.DataFrame, added: pl.DataFrame) -> None:
    """Check that equality deletes apply to the same rows before and after the change.

    `since`: the changed files since the change was planned; `added`: the files that the change adds.
    """
    targets = added.filter(IS_DATA).with_columns(pl.col("data_sequence_number").fill_null(state.last_sequence_number + 1))
    if targets.is_empty():
        return
    is_equality = pl.col("content") == EQUALITY_DELETES
    new_deletes = since.filter((pl.col("change") == "added") & is_equality).drop("change")
    if new_deletes.height and change.removed_data.height:
        for source, target in _moved_pairs(change, targets, new_deletes, state):
            _check_contained(source, target, missed=True)
    if added.filter(IS_DATA)["data_sequence_number"].null_count() == targets.height:
        return  # newer than all existing deletes, so none of them applies
    live_deletes = state.deletes().filter(is_equality)
    remaining_deletes = live_deletes.join(change.removed_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)
    if remaining_deletes.height:
        for source, target in _moved_pairs(change, targets, remaining_deletes, state):
            _check_contained(target, source, missed=False)


def _moved_pairs(
    change: Change, targets: pl.DataFrame, deletes: pl.DataFrame, state: TableState
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of old and new files with the same rows and the ranges of deletes that apply to them; equal pairs only once."""
    columns = deletes.columns
    sources = change.removed_data.select(columns)
    matches = match_deletes(pl.concat([sources, targets.select(columns), deletes]), state.decoder.unpartitioned_specs())
    ranges = matches.data.select("file_path", *_RANGES)
    old = ranges.join(sources, on="file_path", how="semi")
    new = ranges.join(targets, on="file_path", how="semi")
    if sources.is_empty():  # new rows: no existing delete may apply to them
        no_ranges = dict.fromkeys(_RANGES, 0)
        return [({"file_path": "none", **no_ranges}, target) for target in new.iter_rows(named=True)]
    if change.row_map is None:
        old, new = (side.join(files, on="file_path") for side, files in ((old, sources), (new, targets)))
        # Within one partition spec rows stay in their partition. Otherwise they may move from any file to any other.
        one_spec = pl.concat([old["spec_id"], new["spec_id"]]).n_unique() == 1
        stay_in_partition = one_spec and new.join(old, on=PARTITION_KEY, how="anti").is_empty()
        columns = [*_RANGES, *(PARTITION_KEY if stay_in_partition else [])]
        old, new = (side.unique(columns).select("file_path", *columns) for side in (old, new))
        pairs = (
            old.join(new, on=PARTITION_KEY, suffix="_new")
            if stay_in_partition
            else old.join(new, how="cross", suffix="_new")
        )
    else:
        file_pairs = change.row_map.lazy().select(file_path="source", file_path_new="target").unique().collect()
        new = new.rename({name: f"{name}_new" for name in new.columns})
        pairs = file_pairs.join(old, on="file_path").join(new, on="file_path_new")
        pairs = pairs.unique([*_RANGES, *(f"{name}_new" for name in _RANGES)])
    sides = ["file_path", *_RANGES]
    return [
        ({name: row[name] for name in sides}, {name: row[f"{name}_new"] for name in sides})
        for row in pairs.iter_rows(named=True)
    ]


def _check_contained(inner: dict[str, Any], outer: dict[str, Any], *, missed: bool) -> None:
    """Check that every delete of `inner` applies to `outer` too. `missed` selects the error: deletes that would not apply
    any more, or that would start to apply."""
    for kind in _KINDS:
        start, end = inner[f"{kind}_from"], inner[f"{kind}_to"]
        if start >= end or (outer[f"{kind}_from"] <= start and end <= outer[f"{kind}_to"]):
            continue
        if missed:
            raise ChangeRejected(
                "deletes-arrived",
                f"equality deletes committed meanwhile for {inner['file_path']} would miss its rows in the new files",
                "New files must keep the sequence number of the planned snapshot and, for deletes of a partition, stay in "
                "it. " + PLAN_AGAIN,
                file=inner["file_path"],
            )
        raise ChangeRejected(
            "deletes-arrived",
            f"equality deletes would apply to rows in {inner['file_path']} to which they do not apply now",
            "They were committed to the partition of the new files, or the new files have a sequence number older than "
            "that of the planned snapshot. " + PLAN_AGAIN,
            file=inner["file_path"],
        )
