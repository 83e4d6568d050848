"""The form in which plans, jobs, tasks and their outcomes are sent and stored: JSON documents with a type and a version.

A reader ignores fields that it does not know, so that a writer may add some. It names a field that is missing or of a wrong
type, and a version that it does not know. Ids of 64 bits are texts: in many languages numbers of JSON lose digits.

Stored documents are compressed with gzip, which every language reads.

docs/reference/protocol.md describes the documents. Examples of every version are in tests/data/protocol.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pyarctic.errors import ProtocolError

PROTOCOL_VERSION = 1
DocumentType = Literal["job", "task", "result", "failure", "plan", "commit"]
MAX_DOCUMENT_BYTES = 1 << 30
"""The size of a document after decompression, unless a reader sets another limit. Plans for a million files have less."""
_GZIP = 31
"""The `wbits` of zlib for the gzip format."""
_GZIP_LEVEL = 3


def to_document(type_: DocumentType, values: Mapping[str, Any]) -> dict[str, Any]:
    """A document of the current version."""
    return {"type": type_, "version": PROTOCOL_VERSION, **values}


def id_to_text(value: int | None) -> str | None:
    """An id of 64 bits as documents have it."""
    return None if value is None else str(value)


def pack(document: Mapping[str, Any]) -> bytes:
    """A document in its stored form. Equal documents have equal bytes."""
    text = json.dumps(document, separators=(",", ":"))
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP)
    return compressor.compress(text.encode()) + compressor.flush()


def unpack(data: bytes, max_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """The document in a stored form. Whoever made it cannot make this process take more than `max_bytes` for its text."""
    decompressor = zlib.decompressobj(wbits=_GZIP)
    try:
        text = decompressor.decompress(data, max_bytes)
    except zlib.error as cause:
        raise ProtocolError(f"a stored document is not gzip: {cause}") from cause
    if decompressor.unconsumed_tail:
        raise ProtocolError(f"a stored document has more than {max_bytes} bytes", max_bytes=max_bytes)
    if not decompressor.eof or decompressor.unused_data:
        raise ProtocolError("a stored document is truncated, or something follows it")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise ProtocolError(f"a stored document is not JSON: {cause}") from cause


class Fields:
    """The fields of a document, checked as they are read."""

    def __init__(self, document: object, type_: str) -> None:
        """`type_` names the part of a document that this is, for errors."""
        if not isinstance(document, Mapping):
            raise ProtocolError(f"a {type_} must be a JSON object, not {_json_type(document)}", type=type_)
        self._document: Mapping[str, Any] = document
        self._type = type_

    @classmethod
    def of(cls, document: object, type_: DocumentType) -> Fields:
        """The fields of a document that must be of a type, and of a version that is known."""
        fields = cls(document, type_)
        if fields.text("type") != type_:
            raise ProtocolError(f"expected a {type_}, not a {fields.text('type')}", type=type_)
        version = fields.number("version")
        if not 1 <= version <= PROTOCOL_VERSION:
            raise ProtocolError(
                f"the {type_} has version {version} of the protocol, and this release knows up to {PROTOCOL_VERSION}",
                hint="Use the same release of PyArctic on both sides, or an older one where this was written.",
                type=type_,
                version=version,
                reason="newer-version",
            )
        return fields

    def __contains__(self, name: str) -> bool:
        return name in self._document

    def value(self, name: str) -> Any:
        """A field of any type."""
        if name not in self._document:
            raise ProtocolError(f"the {self._type} has no field {name!r}", type=self._type, field=name)
        return self._document[name]

    def text(self, name: str) -> str:
        """A text."""
        return str(self._of_type(name, str))

    def optional_text(self, name: str) -> str | None:
        """A text or null; null if it is missing."""
        return None if self._document.get(name) is None else self.text(name)

    def number(self, name: str) -> int:
        """A whole number."""
        return int(self._of_type(name, int))

    def optional_number(self, name: str) -> int | None:
        """A whole number or null; null if it is missing."""
        return None if self._document.get(name) is None else self.number(name)

    def decimal(self, name: str) -> float:
        """Any number."""
        return float(self._of_type(name, int, float))

    def flag(self, name: str) -> bool:
        """True or false; false if it is missing."""
        return bool(self._of_type(name, bool)) if name in self._document else False

    def id(self, name: str) -> int:
        """An id of 64 bits."""
        text = self.text(name)
        if not text.removeprefix("-").isdigit():
            raise self._wrong(name, "a whole number as text")
        return int(text)

    def optional_id(self, name: str) -> int | None:
        """An id of 64 bits or null; null if it is missing."""
        return None if self._document.get(name) is None else self.id(name)

    def optional_ids(self, name: str) -> tuple[int | None, ...]:
        """A list of ids of 64 bits and nulls."""
        values = self._of_type(name, list)
        if not all(value is None or (isinstance(value, str) and value.removeprefix("-").isdigit()) for value in values):
            raise self._wrong(name, "a list of whole numbers as texts")
        return tuple(None if value is None else int(value) for value in values)

    def one_of(self, name: str, values: tuple[str, ...]) -> str:
        """A text out of a few."""
        value = self.text(name)
        if value not in values:
            raise ProtocolError(
                f"{name} of the {self._type} must be one of {', '.join(values)}, not {value!r}", type=self._type, field=name
            )
        return value

    def time(self, name: str) -> datetime:
        """A time as in ISO 8601, with its zone."""
        try:
            value = datetime.fromisoformat(self.text(name))
        except ValueError:
            raise self._wrong(name, "a time as in ISO 8601") from None
        if value.tzinfo is None:
            raise self._wrong(name, "a time with its zone")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if it is missing."""
        return self._list(name, str)

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty if it is missing."""
        return self._list(name, int)

    def objects(self, name: str) -> list[Mapping[str, Any]]:
        """A list of objects."""
        values = self._of_type(name, list)
        if not all(isinstance(value, Mapping) for value in values):
            raise self._wrong(name, "a list of objects")
        return list(values)

    def _list(self, name: str, kind: type) -> tuple[Any, ...]:
        values = self._of_type(name, list) if name in self._document else []
        if not all(isinstance(value, kind) for value in values):
            raise self._wrong(name, f"a list of {'texts' if kind is str else 'whole numbers'}")
        return tuple(values)

    def _of_type(self, name: str, *kinds: type) -> Any:
        value = self.value(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self._wrong(name, _NAMES[kinds[0]])
        return value

    def _wrong(self, name: str, expected: str) -> ProtocolError:
        found = _json_type(self._document[name])
        return ProtocolError(
            f"the field {name!r} of the {self._type} must be {expected}, not {found}", type=self._type, field=name
        )


_NAMES: Mapping[type, str] = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", float: "a number"}


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    return next((name for kind, name in _NAMES.items() if type(value) is kind), type(value).__name__)
