"""Rows as records: flat values that every database has, and back. Both stores pass rows through here, so both keep the same.

A field of a row is text, a number, a bool, an instant, bytes or JSON. Enums become text, instants UTC without a time zone,
documents JSON text.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pyarctic.ams.rows import Row
from pyarctic.ams.store.port import KEYS

R = TypeVar("R", bound=Row)
Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""Encodes a value, and decodes it. None is never passed to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a kind of rows."""

    name: str
    type: type
    """Of its values in a row: for a document `dict`, for several `tuple`."""
    optional: bool

    @property
    def codec(self) -> Codec | None:
        """None: values are stored as they are."""
        if issubclass(self.type, StrEnum):
            return str, self.type
        return _CODECS.get(self.type)

    @property
    def is_json(self) -> bool:
        """JSON is stored and shown, and not searched."""
        return self.type in (dict, tuple)


@dataclass(frozen=True)
class Form(Generic[R]):
    """How rows of a kind are turned into records."""

    kind: type[R]

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        hints = get_type_hints(self.kind)
        return {each.name: _field(each.name, hints[each.name]) for each in fields(self.kind)}

    def searched(self, name: str) -> Field:
        """A field that can be searched and ordered by; raises TypeError for others."""
        field = self.fields.get(name)
        if field is None or field.is_json:
            raise TypeError(f"{self.kind.__name__} cannot be searched by {name}")
        return field

    def record(self, row: R) -> dict[str, Any]:
        """The row as a record."""
        record = dict(zip(self.fields, self._values(row), strict=True))
        for name, (encode, _) in self._codecs:
            if record[name] is not None:
                record[name] = encode(record[name])
        return record

    def row(self, values: Sequence[Any]) -> R:
        """The row of a record, given by its values in the order of the fields."""
        record = dict(zip(self.fields, values, strict=True))
        for name, (_, decode) in self._codecs:
            if record[name] is not None:
                record[name] = decode(record[name])
        return self.kind(**record)

    @cached_property
    def _values(self) -> Callable[[R], tuple[Any, ...]]:
        return operator.attrgetter(*self.fields)

    @cached_property
    def _codecs(self) -> tuple[tuple[str, Codec], ...]:
        return tuple((field.name, field.codec) for field in self.fields.values() if field.codec)


_FORMS: Mapping[type[Any], Form[Any]] = {kind: Form(kind) for kind in KEYS}


def form_of(kind: type[R]) -> Form[R]:
    """The form of a kind of rows."""
    return _FORMS[kind]


def _field(name: str, hint: Any) -> Field:
    optional = isinstance(hint, UnionType) and type(None) in get_args(hint)
    [plain] = [each for each in get_args(hint) if each is not type(None)] if optional else [hint]
    origin = get_origin(plain)
    return Field(name=name, type=dict if origin is Mapping else origin or plain, optional=optional)


def _to_json(value: Any) -> str:
    # Escaped: texts of errors may have characters that databases refuse.
    return json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a document cannot hold {type(value).__name__}")


def _to_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"an instant without a time zone: {value}")
    return value.astimezone(UTC).replace(tzinfo=None)


def _from_utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC)


_CODECS: Mapping[type, Codec] = {
    datetime: (_to_utc, _from_utc),
    dict: (_to_json, json.loads),
    tuple: (_to_json, lambda text: tuple(json.loads(text))),
}


_LARGEST = 2**63 - 1


def parse_value(kind: type[Any], name: str, given: Any) -> Any:
    """A value of a field that a row may be searched by, as JSON writes it; raises ValueError or TypeError for others."""
    field = form_of(kind).searched(name)
    if given is None:
        if field.optional:
            return None
    elif field.type is datetime:
        value = datetime.fromisoformat(given)
        if value.tzinfo is not None:
            return value
    elif issubclass(field.type, StrEnum):
        return field.type(given)
    elif isinstance(given, str) and field.type is str:
        return given.encode().decode()  # refuses halves of characters
    elif type(given) is field.type and (not isinstance(given, int) or abs(given) <= _LARGEST):
        return given
    raise ValueError(f"{given!r} is no {field.type.__name__}")
