"""Sizes, counts and ages as people read and write them. Machines get plain numbers and RFC 3339 instants instead."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_AGES = (
    (365 * 86400, "year", "years"),
    (30 * 86400, "month", "months"),
    (86400, "day", "days"),
    (3600, "h", "h"),
    (60, "min", "min"),
    (1, "s", "s"),
)
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_SIZES = {"": 1, "b": 1} | {
    f"{letter}{suffix}": 1024**power for power, letter in enumerate("kmgtp", start=1) for suffix in ("", "b", "ib")
}
_LONGEST_SECONDS = 100 * 365 * 86400
_SECONDS = {"": 0.001, "ms": 0.001, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def parse_bytes(text: str) -> int:
    """A size such as `128MB`, `1.5 GiB` or `4096`; units are binary. Raises ValueError."""
    return int(_parsed(text, _SIZES))


def parse_duration(text: str) -> timedelta:
    """A duration such as `30s`, `10min`, `1h`, `7d`, or a number of milliseconds. Raises ValueError."""
    seconds = _parsed(text, _SECONDS)
    if seconds > _LONGEST_SECONDS:
        msg = f"{text!r} is longer than a hundred years"
        raise ValueError(msg)
    return timedelta(seconds=seconds)


def _parsed(text: str, units: dict[str, float] | dict[str, int]) -> float:
    found = _AMOUNT.fullmatch(text)
    if found is None or found[2].lower() not in units:
        msg = f"{text!r} is not an amount with one of the units {', '.join(filter(None, units))}"
        raise ValueError(msg)
    return float(found[1]) * units[found[2].lower()]


def format_duration(duration: timedelta) -> str:
    """How long, in its largest unit: `30 s`, `2 h`, `7 days`."""
    seconds = round(duration.total_seconds())
    for length, one, many in _AGES:
        if seconds >= length:
            amount = seconds // length
            return f"{amount} {one if amount == 1 else many}"
    return f"{round(duration.total_seconds() * 1000)} ms"


def format_bytes(size_bytes: int) -> str:
    """Binary sizes with one digit after the point: `0 B`, `512 B`, `1.4 GiB`."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        # 1023.95 would print as 1024.0: the next unit is the better word for it.
        if abs(value) < 1023.95 or unit == "PiB":
            return f"{value:.1f} {unit}"
    raise AssertionError("unreachable: the last unit always returns")


def format_count(count: int) -> str:
    """Counts with thousands separators: `1,234,567`."""
    return f"{count:,}"


def format_age(then: datetime, now: datetime) -> str:
    """How long ago `then` was, in its largest unit: `3 min ago`, `2 days ago`; clocks may differ: `in 5 s`."""
    seconds = round((now - then).total_seconds())
    if seconds == 0:
        return "just now"
    for length, one, many in _AGES:
        amount = abs(seconds) // length
        if amount:
            word = one if amount == 1 else many
            return f"{amount} {word} ago" if seconds > 0 else f"in {amount} {word}"
    raise AssertionError("unreachable: one second is a unit")


def format_instant(when: datetime) -> str:
    """RFC 3339 in UTC, as JSON and `--absolute` show it: `2026-01-31T09:30:00Z`."""
    return when.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
