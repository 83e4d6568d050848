"""What a table lost points of its health for: figures for people, and what would cure it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

import polars as pl

from pyarctic.iceberg.delete import EQUALITY, GLOBAL_EQUALITY
from pyarctic.optimizing.evaluate.health import IS_DUE, Cause, Deduction
from pyarctic.optimizing.evaluate.rules import RULES
from pyarctic.optimizing.observe.observation import KeyedObservation, Observation
from pyarctic.optimizing.protocol.task import OPTIMIZING_KINDS, OptimizingKind
from pyarctic.units import format_bytes, format_count, format_timestamp

_Action = Callable[[pl.DataFrame], str]
"""Says what optimizing does to partitions."""
_ALWAYS = pl.lit(value=True)
_ALL_HELP: Mapping[OptimizingKind, pl.Expr] = dict.fromkeys(OPTIMIZING_KINDS, _ALWAYS)
_MERGES_FILES: Mapping[OptimizingKind, pl.Expr] = {**_ALL_HELP, "minor": pl.col("packable_fragments") > 0}
_REMOVES_ROWS: Mapping[OptimizingKind, pl.Expr] = {"major": _ALWAYS, "full": _ALWAYS}


def deductions_of(partitions: pl.DataFrame, observation: Observation, points: dict[str, float]) -> tuple[Deduction, ...]:
    """What the points were lost for, the worst first. `points`: as `table_points`."""
    found = (
        _of_keyed(partitions, observation, points)
        if isinstance(observation, KeyedObservation)
        else _of_native(partitions, observation, points)
    )
    return tuple(sorted((each for each in found if each.points), key=lambda deduction: -deduction.points))


def _of_native(partitions: pl.DataFrame, observation: Observation, points: dict[str, float]) -> Iterator[Deduction]:
    yield _small_files(partitions, points["small_files_points"])
    yield _equality_deletes(partitions, observation, points["equality_deletes_points"])
    yield _position_deletes(partitions, points["position_deletes_points"])


def _of_keyed(partitions: pl.DataFrame, observation: KeyedObservation, points: dict[str, float]) -> Iterator[Deduction]:
    """Changes that are not merged count as small files, and their rows are compared."""
    unmerged, excess = (_sum(partitions, name) for name in ("unmerged_files", "excess_files"))
    of_changes = points["small_files_points"] * unmerged / max(excess, 1)
    yield _small_files(partitions, points["small_files_points"] - of_changes)
    if unmerged:
        yield _pending_changes(partitions, observation, points["equality_deletes_points"] + of_changes)
    else:
        yield _foreign_files(partitions, points["equality_deletes_points"])
    yield _position_deletes(partitions, points["position_deletes_points"])


def _small_files(partitions: pl.DataFrame, points: float) -> Deduction:
    affected = partitions.filter(pl.col("packable_files") > 0)
    small, size = _sum(affected, "small_files"), _sum(affected, "small_bytes")
    return _deduction(
        "small-files",
        points,
        f"{format_count(small)} of {format_count(_sum(partitions, 'data_files'))} data files are small: "
        f"{format_bytes(size // max(small, 1))} on average",
        _cure(affected, _merge_files, run="major", helps=_MERGES_FILES, waits_for_writers=True),
    )


def _merge_files(partitions: pl.DataFrame) -> str:
    """Minor optimizing merges fragments only."""
    is_minor = (pl.col("kind") == "minor").fill_null(value=False)
    files = pl.when(is_minor).then("fragments").otherwise("small_files")
    saved = pl.when(is_minor).then("packable_fragments").otherwise("packable_files")
    before, after = partitions.select(files.sum(), after=files.sum() - saved.sum()).row(0)
    return f"merges {_count(before, 'file')} into {format_count(after)}"


def _equality_deletes(partitions: pl.DataFrame, observation: Observation, points: float) -> Deduction:
    deletes = sum(observation.matches.by_kind[scope].height for scope in (EQUALITY, GLOBAL_EQUALITY))
    files = _count(deletes, "equality delete file")
    return _deduction(
        "equality-deletes",
        points,
        f"{_share(partitions, 'compared_rows')} rows are compared with {files} when they are read",
        _cure(partitions.filter(pl.col("compared_rows") > 0), lambda _: "applies the equality deletes", run="minor"),
    )


def _position_deletes(partitions: pl.DataFrame, points: float) -> Deduction:
    return _deduction(
        "position-deletes",
        points,
        f"{_share(partitions, 'removable_rows')} rows are deleted by position, and are read nevertheless",
        _cure(
            partitions.filter(pl.col("removable_rows") > 0),
            lambda some: f"removes {_count(_sum(some, 'removable_rows'), 'deleted row')}",
            run="major",
            helps=_REMOVES_ROWS,
            waits_for_writers=True,
        ),
    )


def _pending_changes(partitions: pl.DataFrame, observation: KeyedObservation, points: float) -> Deduction:
    rows = _sum(partitions, "change_records") + _sum(partitions, "held_records")
    files, held = _sum(partitions, "unmerged_files"), _sum(partitions, "held_files")
    cures = []
    if files > held:
        changed = partitions.filter(pl.col("change_files") > 0)
        cures.append(_cure(changed, lambda some: f"merges {_count(_sum(some, 'change_files'), 'change file')}", run="minor"))
    if held:
        cures.append(_wait_for_transaction(held, observation))
    return _deduction(
        "pending-changes",
        points,
        f"{_count(files, 'change file')} with {_count(rows, 'row')} {'is' if files == 1 else 'are'} not merged: "
        f"{_share(partitions, 'compared_rows')} rows are compared when they are read",
        "; ".join(cures),
    )


def _wait_for_transaction(held: int, observation: KeyedObservation) -> str:
    until = observation.changes.open_until
    return f"{_count(held, 'change file')} {'waits' if held == 1 else 'wait'} for transaction " + (
        f"{observation.changes.oldest_open}" + ("" if until is None else f" until {_format_second(until)}")
    )


def _foreign_files(partitions: pl.DataFrame, points: float) -> Deduction:
    files = _sum(partitions, "foreign_files")
    return _deduction(
        "foreign-files",
        points,
        f"{_count(files, 'file')} of Base {'is' if files == 1 else 'are'} of another engine: "
        f"{_share(partitions, 'compared_rows')} rows are compared when they are read",
        _cure(partitions.filter(pl.col("foreign_files") > 0), lambda _: f"rewrites {_count(files, 'file')}", run="minor"),
    )


def _deduction(cause: Cause, points: float, detail: str, cure: str) -> Deduction:
    return Deduction(cause=cause, points=round(points, 1), detail=detail, cure=cure)


def _cure(
    affected: pl.DataFrame,
    act: _Action,
    *,
    run: OptimizingKind,
    helps: Mapping[OptimizingKind, pl.Expr] = _ALL_HELP,
    waits_for_writers: bool = False,
) -> str:
    """What happens to these partitions: those that are due, those that wait for their writers, and the others, which wait
    for a rule about time, or for somebody to run `optimize` with the kind `run`. `helps`: the kinds that help, and where."""
    is_due = pl.any_horizontal((pl.col("kind") == kind) & where for kind, where in helps.items()).fill_null(value=False)
    is_held = is_due & pl.col("is_busy") & pl.lit(waits_for_writers)
    due, held, others = (affected.filter(each) for each in (is_due & ~is_held, is_held, ~is_due))
    cures = []
    if due.height:
        kinds = [kind for kind in OPTIMIZING_KINDS if kind in due["kind"]]
        cures.append(f"{' and '.join(kinds)} optimizing {act(due)}")
    if held.height:
        until = _format_second(held["busy_until"].min())  # type: ignore[arg-type]
        cures.append(
            f"{_count(held.height, 'partition')} {'waits' if held.height == 1 else 'wait'} for writers until {until}"
        )
    return "; ".join([*cures, *_later(others, act, run, helps)])


def _later(
    partitions: pl.DataFrame, act: _Action, run: OptimizingKind, helps: Mapping[OptimizingKind, pl.Expr]
) -> Iterator[str]:
    """What rules about time will do, and what somebody may do at once."""
    for rule in RULES:
        if rule.since is None or rule.kind not in helps:
            continue
        is_soon = pl.col(f"{rule.name}_next_at").is_not_null() & ~IS_DUE & helps[rule.kind]
        soon, partitions = partitions.filter(is_soon), partitions.filter(~is_soon)
        if soon.height:
            begin = _format_second(soon[f"{rule.name}_next_at"].min())  # type: ignore[arg-type]
            yield f"{rule.kind} optimizing {act(soon.with_columns(kind=pl.lit(rule.kind)))} from {begin} on"
    if partitions.height:
        yield f"run `optimize --kind {run}`, which {act(partitions.with_columns(kind=pl.lit(run)))}"


def _format_second(when: datetime) -> str:
    """The time for people: the first full second that is not before it."""
    return format_timestamp((when + timedelta(microseconds=999_999)).replace(microsecond=0))


def _sum(partitions: pl.DataFrame, column: str) -> int:
    return int(partitions[column].sum())


def _share(partitions: pl.DataFrame, column: str) -> str:
    """The rows of a column out of all rows: `200 of 1,000`."""
    return f"{format_count(_sum(partitions, column))} of {format_count(_sum(partitions, 'all_rows'))}"


def _count(count: int, noun: str) -> str:
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"
