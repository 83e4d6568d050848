"""Versions of keys, and which one is the latest: the model of `keyed_table`, and the schemas of its tables.

It knows nothing of files. Every version is kept with its commit and transaction, and so is every state of the base store;
the latest versions are computed for every question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
"""Values by the name a column was made with: a renamed column is the same, a dropped one is gone for good."""
Key = tuple[Any, ...]
Place = tuple[tuple[Any, ...], Key]
"""Partition and key."""
Rows = Counter[tuple[Any, ...]]
AFTER_ALL = 1 << 60

# Texts with long common beginnings: their bounds in manifests are cut off.
_LONG = "a text that is longer than its bounds "
KEYS: dict[str, tuple[pa.Schema, list[list[Any]]]] = {
    "long": (pa.schema([("id", pa.int64())]), [[-(1 << 40), -33, -1, 0, 1, 2, 3, 31, 1 << 31, 1 << 40]]),
    "string": (pa.schema([("id", pa.string())]), [["", "a", "b", "中文", "😀", f"{_LONG}1", f"{_LONG}2", "null"]]),
    "composite": (
        # Names that the code has uses for, too.
        pa.schema([("position", pa.int32()), ("mark", pa.string())]),
        [[-1, 0, 7, 1 << 30], ["", "x", f"{_LONG}1"]],
    ),
    "decimal": (
        pa.schema([("id", pa.decimal128(10, 2))]),
        [[Decimal(text) for text in ("-12.34", "0.00", "5.00", "5.01", "12.34", "99999999.99", "-0.01")]],
    ),
    "wide decimal": (
        pa.schema([("id", pa.decimal128(30, 4))]),
        [[Decimal(text) for text in ("-12.3400", "0.0000", "12345678901234567890.1234", "-12345678901234567890.1234")]],
    ),
    "date": (pa.schema([("id", pa.date32())]), [[date(2022, 7, 3) + timedelta(days) for days in (-20000, -1, 0, 1, 2, 99)]]),
    "time": (
        pa.schema([("id", pa.timestamp("us", "UTC"))]),
        [[datetime(2022, 7, 3, tzinfo=UTC) + timedelta(days) for days in (-20000.5, -1, 0, 0.000001, 0.5, 99)]],
    ),
    "binary": (pa.schema([("id", pa.binary())]), [[b"", b"\0", b"\xff", b"\x01\xff\x80", b"abc", b"abd"]]),
    "truth": (pa.schema([("id", pa.bool_()), ("file", pa.int64())]), [[True, False], [0, 1, 2]]),
}
REGIONS = [None, "a", "b/ü", "null"]
ZONES = [None, -1, 0, 2]
SPECS: dict[str, list[str]] = {
    "whole": [],
    "region": ["region"],
    "zone": ["zone"],
    "both": ["region", "zone"],
    "bucket": ["bucket(2, region)"],
    "truncate": ["truncate(2, zone)"],
    "key": ["bucket(2, {key})"],
}
SELECTIONS: dict[str, list[tuple[str, Callable[[tuple[Any, ...]], bool]]]] = {
    "whole": [],
    "region": [
        ("region = 'a'", lambda p: p[0] == "a"),
        ("region is null", lambda p: p[0] is None),
        ("region is not null", lambda p: p[0] is not None),
        ("region != 'a'", lambda p: p[0] not in (None, "a")),
        ("not (region in ('a', 'null'))", lambda p: p[0] not in (None, "a", "null")),
        ("region < 'b' or region is null", lambda p: p[0] is None or p[0] < "b"),
        ("region in ('a', 'b/ü')", lambda p: p[0] in ("a", "b/ü")),
    ],
    "zone": [("zone >= 1", lambda p: p[0] is not None and p[0] >= 1), ("zone is null", lambda p: p[0] is None)],
    "both": [
        ("region = 'a'", lambda p: p[0] == "a"),
        ("region = 'a' and zone = 2", lambda p: p == ("a", 2)),
        ("zone is null", lambda p: p[1] is None),
    ],
    "bucket": [],
    "truncate": [("zone >= 0", lambda p: p[0] is not None and p[0] >= 0), ("zone is null", lambda p: p[0] is None)],
    "key": [],
}
"""Conditions that take whole partitions, with what they mean."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A row that was inserted, or a key that was deleted."""

    place: Place
    order: tuple[int, int, int]
    """Transaction, offset, and an insert after a delete."""
    row: Row | None
    """None: deleted."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A snapshot of the change store."""

    snapshot_id: int
    sequence: int
    versions: tuple[Version, ...]
    bases: int
    """How many snapshots the base store had then."""
    columns: dict[str, str]
    """The table's columns then: what it was made with → name."""


@dataclass(frozen=True, kw_only=True)
class BaseState:
    """A snapshot of the base store."""

    merged: dict[tuple[Any, ...], int] = field(default_factory=dict)
    rows: dict[Place, tuple[int, Row]] = field(default_factory=dict)
    """With the transaction of their file."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A transaction that will commit later."""

    id: int
    loads: int
    """How many overwrites there were when it began."""


def latest_rows(base: BaseState, commits: Iterable[Commit]) -> dict[Place, Row]:
    """The rows of a table: the latest version of every key, unless it is a delete."""
    latest: dict[Place, tuple[tuple[int, int, int], Row | None]] = {
        place: ((transaction, AFTER_ALL, 1), row) for place, (transaction, row) in base.rows.items()
    }
    for commit in commits:
        for version in commit.versions:
            is_merged = commit.sequence <= base.merged.get(version.place[0], 0)
            if not is_merged and (version.place not in latest or version.order > latest[version.place][0]):
                latest[version.place] = version.order, version.row
    return {place: row for place, (_, row) in latest.items() if row is not None}
