"""Equality deletes reach by sequence number and partition: rows that move to another file may get out of reach of a delete
that is meant for them, or into the reach of one that is not. Neither may happen.

Deletes of one group are sorted by sequence number, and those of a file are a run of neighbours (see `iceberg.deletes`):
whether one file is hit by all that hits another is a comparison of ranges.
"""

from __future__ import annotations

import polars as pl

from pyarctic.iceberg.commit.change import Change
from pyarctic.iceberg.commit.table_state import PLAN_ANEW, Refusal, TableState
from pyarctic.iceberg.delete.matching import EQUALITY, GLOBAL_EQUALITY, PARTITION_KEY, match_deletes
from pyarctic.iceberg.manifest.file_list import FILE_IDENTITY, IS_DATA
from pyarctic.iceberg.manifest.reader import EQUALITY_DELETES

_KINDS = (EQUALITY, GLOBAL_EQUALITY)
_RANGES = [f"{kind}_{end}" for kind in _KINDS for end in ("from", "to")]


def check_reach(change: Change, state: TableState, since: pl.DataFrame, added: pl.DataFrame) -> None:
    """`added` describes the files that the change adds."""
    targets = added.filter(IS_DATA).with_columns(pl.col("data_sequence_number").fill_null(state.last_sequence_number + 1))
    if targets.is_empty():
        return
    is_equality = pl.col("content") == EQUALITY_DELETES
    arrived = since.filter((pl.col("change") == "added") & is_equality).drop("change")
    if arrived.height and change.removed_data.height:
        for source, target in _pairs(change, targets, arrived, state):
            _require_within(source, target, missed=True)
    if added.filter(IS_DATA)["data_sequence_number"].null_count() == targets.height:
        return  # as new as can be: no delete that is there already hits them
    live = state.deletes().filter(is_equality)
    staying = live.join(change.removed_deletes, on=FILE_IDENTITY, how="anti", nulls_equal=True)
    if staying.height:
        for source, target in _pairs(change, targets, staying, state):
            _require_within(target, source, missed=False)


def _pairs(
    change: Change, targets: pl.DataFrame, deletes: pl.DataFrame, state: TableState
) -> list[tuple[dict[str, object], dict[str, object]]]:
    """Old and new files of the same rows, with the ranges of deletes that hit them; pairs of equal ranges once."""
    columns = deletes.columns
    sources = change.removed_data.select(columns)
    matches = match_deletes(pl.concat([sources, targets.select(columns), deletes]), state.decoder.unpartitioned_specs())
    hit = matches.data.select("file_path", *_RANGES)
    old = hit.join(sources, on="file_path", how="semi")
    new = hit.join(targets, on="file_path", how="semi")
    if sources.is_empty():  # rows that were nowhere before: nothing that is there may hit them
        nowhere = dict.fromkeys(_RANGES, 0)
        return [({"file_path": "none", **nowhere}, target) for target in new.iter_rows(named=True)]
    if change.row_map is None:
        old, new = (side.join(files, on="file_path") for side, files in ((old, sources), (new, targets)))
        # Within one spec a row stays in its partition. Otherwise it may go from any file to any other.
        one_spec = pl.concat([old["spec_id"], new["spec_id"]]).n_unique() == 1
        stays = one_spec and new.join(old, on=PARTITION_KEY, how="anti").is_empty()
        columns = [*_RANGES, *(PARTITION_KEY if stays else [])]
        old, new = (side.unique(columns).select("file_path", *columns) for side in (old, new))
        pairs = old.join(new, on=PARTITION_KEY, suffix="_new") if stays else old.join(new, how="cross", suffix="_new")
    else:
        moved = change.row_map.lazy().select(file_path="source", file_path_new="target").unique().collect()
        new = new.rename({name: f"{name}_new" for name in new.columns})
        pairs = moved.join(old, on="file_path").join(new, on="file_path_new")
        pairs = pairs.unique([*_RANGES, *(f"{name}_new" for name in _RANGES)])
    sides = ["file_path", *_RANGES]
    return [
        ({name: row[name] for name in sides}, {name: row[f"{name}_new"] for name in sides})
        for row in pairs.iter_rows(named=True)
    ]


def _require_within(inner: dict[str, object], outer: dict[str, object], *, missed: bool) -> None:
    """Every delete that hits `inner` must hit `outer`."""
    for kind in _KINDS:
        start, end = int(str(inner[f"{kind}_from"])), int(str(inner[f"{kind}_to"]))
        if start >= end or (int(str(outer[f"{kind}_from"])) <= start and end <= int(str(outer[f"{kind}_to"]))):
            continue
        if missed:
            raise Refusal(
                "deletes-arrived",
                f"equality deletes that arrived meanwhile for {inner['file_path']} would miss its rows in the new files",
                "New files must keep the sequence number of the planned snapshot and, for deletes of one partition, stay in "
                "it. " + PLAN_ANEW,
                file=inner["file_path"],
            )
        raise Refusal(
            "deletes-arrived",
            f"equality deletes would hit rows in {inner['file_path']} that they do not hit now",
            "They came in the new files' partition, or the new files have a sequence number older than the planned "
            "snapshot's. " + PLAN_ANEW,
            file=inner["file_path"],
        )
