"""What can be wrong with a table, as data: kinds of problems with their severity and remedy, and problems as frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import polars as pl

from pyarctic.errors import Damaged, Unsupported

Severity = Literal["damage", "warning", "note"]
"""Damage: rows are lost, wrong or cannot be read. Warning: no row is concerned. Note: nothing is wrong."""

PROBLEM_SCHEMA = pl.Schema({"code": pl.String, "file_path": pl.String, "detail": pl.String, "rows": pl.Int64})
"""One row per problem: the kind, the file it concerns, if any, what is wrong, and how many rows are concerned, if known."""

_FIELDS = pl.Schema({"code": pl.String, "detail": pl.String, "file_path": pl.String, "rows": pl.Int64})
_RESTORE = "Restore the files from a backup, or roll back to a snapshot that does not need them."
_ROLL_BACK = "Their writer violated the specification. Roll back to the snapshot before its commit."
_REWRITE = "Scans with a condition may skip rows. Write the files again, for instance with `optimize --kind full`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of problem."""

    severity: Severity
    title: str
    hint: str
    repair: str | None = None
    """How it is repaired without losing a row; None if it cannot be."""


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "missing-file": Kind(severity="damage", title="files are missing", hint=_RESTORE),
        "wrong-size": Kind(severity="damage", title="files do not have the size that the metadata says", hint=_RESTORE),
        "unreadable-file": Kind(severity="damage", title="files cannot be read", hint=_RESTORE),
        "wrong-record-count": Kind(
            severity="damage", title="files do not have as many rows as their manifest says", hint=_ROLL_BACK
        ),
        "wrong-bounds": Kind(severity="damage", title="column bounds or counts of files are wrong", hint=_REWRITE),
        "wrong-partition": Kind(
            severity="damage",
            title="rows are in files of other partitions",
            hint="Reads and merges may overlook the rows. Delete them and write them again.",
        ),
        "wrong-manifest": Kind(
            severity="damage", title="manifests differ from what their manifest list says", hint=_ROLL_BACK
        ),
        "file-listed-twice": Kind(
            severity="damage", title="files are listed twice, so that rows appear twice", hint=_ROLL_BACK
        ),
        "corrupt-vector": Kind(severity="damage", title="deletion vectors are corrupt", hint=_RESTORE),
        "wrong-positions": Kind(severity="damage", title="deletes name positions beyond the end of a file", hint=_ROLL_BACK),
        "contradicting-deletes": Kind(severity="damage", title="deletes contradict the data files", hint=_ROLL_BACK),
        "missing-snapshot": Kind(
            severity="damage",
            title="branches or tags lead to snapshots that do not exist",
            hint="Register an older metadata file of the table, or set them to a snapshot that exists.",
        ),
        "unknown-spec": Kind(
            severity="damage",
            title="files are of partition specs that the table does not have",
            hint="Register an older metadata file of the table that has the spec.",
        ),
        "wrong-sequence-number": Kind(severity="damage", title="sequence numbers contradict each other", hint=_ROLL_BACK),
        "wrong-row-ids": Kind(severity="damage", title="row ids are not unique", hint=_ROLL_BACK),
        "missing-statistics": Kind(
            severity="warning",
            title="statistics files are missing or damaged",
            hint="Query planners do without them. Compute the statistics again with the engine that wrote them.",
        ),
        "wrong-summary": Kind(
            severity="warning",
            title="totals of snapshot summaries are wrong",
            hint="Rows are not concerned, only what tools show and estimate.",
            repair="commit a snapshot with totals that are counted again",
        ),
        "dangling-deletes": Kind(
            severity="note",
            title="delete files apply to no data file any more",
            hint="They do no harm; `optimize` removes them as well.",
            repair="remove them by a commit",
        ),
        "dangling-positions": Kind(
            severity="note",
            title="delete files name data files that are not in the table any more",
            hint="They do no harm; `optimize --kind full` removes them.",
        ),
        "not-checked": Kind(
            severity="note", title="files could not be checked completely", hint="Check them with another engine."
        ),
    }
)
"""The kinds of problems that any Iceberg table can have, by their code."""


class Problem(NamedTuple):
    """A row of PROBLEM_SCHEMA. Checks that open single files give them; others give frames."""

    code: str
    detail: str
    file_path: str | None = None
    rows: int | None = None


def problem_frame(problems: Iterable[Problem]) -> pl.DataFrame:
    """Problems as a frame."""
    return pl.DataFrame(list(problems), _FIELDS, orient="row").select(PROBLEM_SCHEMA.names())


def damage_of(error: Damaged | Unsupported, file_path: str | None, rows: int | None = None) -> Problem:
    """An error of reading a file as a problem."""
    code = "missing-file" if isinstance(error.__cause__, FileNotFoundError) else "unreadable-file"
    if isinstance(error, Unsupported):
        code = "not-checked"
    path = file_path or ""
    # The path has a column of its own.
    detail = error.message.replace(f": {path}", "").replace(path, "the file") if path else error.message
    return Problem(code, detail, file_path, rows)


def problems_of(frame: pl.DataFrame, code: str, detail: pl.Expr, rows: pl.Expr | None = None) -> pl.DataFrame:
    """The rows of a frame with `file_path` as problems of one kind."""
    return frame.select(
        pl.lit(code).alias("code"),
        "file_path",
        detail.alias("detail"),
        (pl.lit(None, pl.Int64) if rows is None else rows).alias("rows"),
    ).cast(PROBLEM_SCHEMA)


def join_problems(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Several frames of problems as one."""
    return pl.concat([pl.DataFrame(schema=PROBLEM_SCHEMA), *parts])
