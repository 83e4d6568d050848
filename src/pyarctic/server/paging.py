"""Lists in pages: a cursor tells after which row the next page begins, so that rows which come or go shift nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from fastapi import Query as QueryField
from pydantic import BaseModel, ConfigDict

from pyarctic.ams import Row
from pyarctic.ams.store import KEYS, Query, Transaction, parse_value
from pyarctic.errors import UsageError

R = TypeVar("R", bound=Row)
T = TypeVar("T")

Limit = Annotated[int, QueryField(ge=1, le=500, description="How many items a page has at most.")]
Cursor = Annotated[str | None, QueryField(description="`next` of the page before.")]
DEFAULT_LIMIT = 50


class Page(BaseModel, Generic[T]):
    """Some items of a list."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    items: list[T]
    next: str | None
    """The cursor of the next page; null: this is the last one."""


class Order(NamedTuple):
    """How a list is ordered: by a field, and equal ones by their keys."""

    field: str
    descending: bool = False


class Window(NamedTuple):
    """The part of a list that is asked for."""

    cursor: str | None
    limit: int


def read_page(
    view: Transaction,
    kind: type[R],
    order: Order,
    window: Window,
    keep: Callable[[R], bool] = lambda _: True,
    /,
    **where: Any,
) -> tuple[Sequence[R], str | None]:
    """The rows of a page, and the cursor of the next one. `keep`: what the database cannot search by."""
    place = None if window.cursor is None else _decode(kind, order, window.cursor)
    rows: list[R] = []
    while len(rows) <= window.limit:
        batch = _rows_after(view, kind, order, place, window.limit + 1, where)
        rows += [row for row in batch if keep(row)]
        if len(batch) <= window.limit:
            break
        place = _place_of(kind, order, batch[-1])
    shown = rows[: window.limit]
    return shown, _encode(_place_of(kind, order, shown[-1])) if len(rows) > window.limit else None


_Place = tuple[Any, tuple[Any, ...]]
"""The value of the ordering field, and the key."""


def _rows_after(
    view: Transaction, kind: type[R], order: Order, place: _Place | None, limit: int, where: dict[str, Any]
) -> list[R]:
    query = Query(order=order.field, descending=order.descending, limit=limit)
    if place is None:
        return list(view.find(kind, query, **where))
    value, key = place
    equal = view.find(kind, replace(query, limit=None), **where, **{order.field: value})
    keys = [(row, _place_of(kind, order, row)[1]) for row in equal]
    rest = [row for row, other in keys if (other < key if order.descending else other > key)]
    return [*rest, *view.find(kind, replace(query, after=value), **where)][:limit]


def _place_of(kind: type[R], order: Order, row: R) -> _Place:
    return getattr(row, order.field), tuple(getattr(row, name) for name in KEYS[kind])


def _encode(place: _Place) -> str:
    value, key = place
    text = json.dumps([value.isoformat() if isinstance(value, datetime) else value, *key])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(kind: type[R], order: Order, cursor: str) -> _Place:
    try:
        value, *key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        fields = [order.field, *KEYS[kind]]
        value, *key = (parse_value(kind, name, given) for name, given in zip(fields, [value, *key], strict=True))
        return value, tuple(key)
    except (ValueError, TypeError, RecursionError) as cause:
        raise UsageError("the cursor is not one that this service has given", hint="Begin without a cursor.") from cause
