"""What a query means. Both stores read queries in this form; the one in memory also answers them here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pyarctic.ams.store.fields import R, form_of
from pyarctic.ams.store.port import KEYS, Query


def asked(kind: type[Any], query: Query | None, where: dict[str, Any]) -> Query:
    """The query with further conditions, checked."""
    query = query or Query()
    form, conditions = form_of(kind), [*query.where]
    for name, value in where.items():
        conditions.append((name, tuple(value) if isinstance(value, set | frozenset | list | tuple) else (value,)))
    different = tuple((form.searched(name).name, tuple(dict.fromkeys(values))) for name, values in conditions)
    return replace(query, where=different, order=form.searched(query.order or KEYS[kind][0]).name)


def without_limit(query: Query | None) -> Query | None:
    """A query of rows that are removed; raises TypeError if it has a limit: not all databases would remove the same ones."""
    if query is not None and query.limit is not None:
        raise TypeError("a query of rows that are removed has no limit")
    return query


def order_of(kind: type[Any], query: Query) -> tuple[str, ...]:
    """The fields that rows are ordered by: equal ones by their keys, so that every store gives the same order."""
    order = query.order or KEYS[kind][0]
    return (order, *(name for name in KEYS[kind] if name != order))


def answer(kind: type[Any], rows: Iterable[R], query: Query) -> list[R]:
    """Those of the rows that a query asks for, in its order."""
    names = order_of(kind, query)
    for name, values in query.where:
        rows = _having(rows, name, frozenset(values))
    if query.after is not None:
        rows = _beyond(rows, names[0], query.after, query.descending)
    ordered = sorted(rows, key=lambda row: [_rank(getattr(row, name)) for name in names], reverse=query.descending)
    return ordered[: query.limit]


def _having(rows: Iterable[R], name: str, values: frozenset[Any]) -> Iterator[R]:
    return (row for row in rows if getattr(row, name) in values)


def _beyond(rows: Iterable[R], name: str, bound: Any, descending: bool) -> Iterator[R]:
    limit = _rank(bound)
    return (row for row in rows if (_rank(getattr(row, name)) < limit if descending else _rank(getattr(row, name)) > limit))


def _rank(value: Any) -> tuple[bool, Any]:
    """None comes before everything else."""
    return (False, 0) if value is None else (True, value)
