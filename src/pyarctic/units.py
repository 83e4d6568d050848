"""Sizes, counts and ages as people read them. Machines get plain numbers and RFC 3339 instants instead."""

from __future__ import annotations

from datetime import UTC, datetime

_AGES = (
    (365 * 86400, "year", "years"),
    (30 * 86400, "month", "months"),
    (86400, "day", "days"),
    (3600, "h", "h"),
    (60, "min", "min"),
    (1, "s", "s"),
)


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
