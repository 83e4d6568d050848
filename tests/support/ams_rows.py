"""Rows of the service's database: of any values for Hypothesis, and plain ones for examples."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any, TypeVar

from hypothesis import strategies as st

from pyarctic.ams.machine import Transition
from pyarctic.ams.rows import ClaimRow, CommitRow, EventRow, ProcessRow, Row, TaskRow
from pyarctic.ams.states import CommitState, ProcessState, TaskState
from pyarctic.ams.store.fields import Field, form_of
from pyarctic.ams.store.port import KEYS

R = TypeVar("R", bound=Row)
NOW = datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)
KINDS = tuple(kind for kind in KEYS if kind is not EventRow)
"""Kinds of rows that are written; events are recorded."""

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
"""PostgreSQL has no texts with a zero."""
_INTS = st.integers(-(2**63), 2**63 - 1)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none() | st.booleans() | _INTS | _FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
_DOCUMENTS = st.dictionaries(TEXTS, _JSON, max_size=3)
_YEARS = (datetime(1971, 1, 1), datetime(2099, 1, 1))  # noqa: DTZ001  # Hypothesis adds the zones
_ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-9))])
_VALUES: dict[type, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: _INTS,
    float: _FLOATS,
    bool: st.booleans(),
    datetime: st.datetimes(*_YEARS, timezones=_ZONES),
    bytes: st.binary(max_size=100),
    dict: _DOCUMENTS,
}


def rows(kind: type[R]) -> st.SearchStrategy[R]:
    """Rows of a kind, with any value that its fields can have."""
    return st.builds(kind, **{name: values(kind, field) for name, field in form_of(kind).fields.items()})


def values(kind: type[Any], field: Field) -> st.SearchStrategy[Any]:
    if issubclass(field.type, StrEnum):
        plain: st.SearchStrategy[Any] = st.sampled_from(list(field.type))
    elif field.type is tuple:
        plain = st.lists(TEXTS if (kind, field.name) == (ProcessRow, "kinds") else _DOCUMENTS, max_size=3).map(tuple)
    else:
        plain = _VALUES[field.type]
    return st.none() | plain if field.optional else plain


def key_of(row: Row) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in KEYS[type(row)])


def with_key_of(row: R, other: Row) -> R:
    return replace(row, **{name: getattr(other, name) for name in KEYS[type(row)]})


def task(number: int = 1, **changes: Any) -> TaskRow:
    plain = TaskRow(
        process_id="p1",
        number=number,
        table_uuid="t1",
        group="default",
        unit=1,
        kind="minor",
        partition="day=1",
        state=TaskState.PENDING,
        input_files=3,
        input_bytes=1 << 40,
        created_at=NOW,
    )
    return replace(plain, **changes)


def process(id: str = "p1", **changes: Any) -> ProcessRow:  # noqa: A002  # the name of the field
    plain = ProcessRow(
        id=id,
        table_uuid="t1",
        table="lake.db.t",
        group="default",
        kinds=("minor",),
        state=ProcessState.RUNNING,
        trigger="periodic",
        job_id="j1",
        tasks=1,
        created_at=NOW,
    )
    return replace(plain, **changes)


def commit(snapshot_id: int = 1, **changes: Any) -> CommitRow:
    plain = CommitRow(
        snapshot_id=snapshot_id,
        process_id="p1",
        table_uuid="t1",
        state=CommitState.OPEN,
        record={},
        position=0,
        changed_at=NOW,
    )
    return replace(plain, **changes)


def claim(key: str = "a.parquet", **changes: Any) -> ClaimRow:
    return replace(ClaimRow(table_uuid="t1", key=key, process_id="p1"), **changes)


def move(key: str = "p1.1", **changes: Any) -> Transition:
    plain = Transition(kind="task", key=key, table="t1", before="pending", after="executing", why="it is handed out", at=NOW)
    return replace(plain, **changes)
