"""Parse and format sizes, durations, counts and ages for people. Machine-readable output has plain numbers instead."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_AGE_UNITS = (
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
_MAX_SECONDS = 100 * 365 * 86400
_SECONDS = {"": 0.001, "ms": 0.001, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def parse_bytes(text: str) -> int:
    """Parse a size such as `128MB`, `1.5 GiB` or `4096`; units are binary. Raises ValueError."""
    return int(_parse_amount(text, _SIZES))


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `30s`, `10min`, `1h`, `7d`, or a number of milliseconds. Raises ValueError."""
    seconds = _parse_amount(text, _SECONDS)
    if seconds > _MAX_SECONDS:
        msg = f"{text!r} is longer than a hundred years"
        raise ValueError(msg)
    return timedelta(seconds=seconds)


def _parse_amount(text: str, units: dict[str, float] | dict[str, int]) -> float:
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].lower() not in units:
        msg = f"{text!r} is not an amount with one of the units {', '.join(filter(None, units))}"
        raise ValueError(msg)
    return float(match[1]) * units[match[2].lower()]


def format_bytes(size_bytes: int) -> str:
    """Format a size in binary units with one decimal: `0 B`, `512 B`, `1.4 GiB`."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        # 1023.95 would be printed as 1024.0: use the next unit.
        if abs(value) < 1023.95 or unit == "PiB":
            return f"{value:.1f} {unit}"
    raise AssertionError("unreachable: the last unit always returns")


def format_count(count: int) -> str:
    """Format a count with thousands separators: `1,234,567`."""
    return f"{count:,}"


def format_quantity(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 file`, `2 files`, `no files`; `plural` if it is not the noun with an s."""
    return f"{format_count(count) if count else 'no'} {noun if count == 1 else plural or f'{noun}s'}"


def format_age(then: datetime, now: datetime) -> str:
    """Format how long ago `then` was in the largest unit: `3 min ago`, `2 days ago`; for future times: `in 5 s`."""
    seconds = round((now - then).total_seconds())
    if seconds == 0:
        return "just now"
    for length, singular, plural in _AGE_UNITS:
        amount = abs(seconds) // length
        if amount:
            unit = singular if amount == 1 else plural
            return f"{amount} {unit} ago" if seconds > 0 else f"in {amount} {unit}"
    raise AssertionError("unreachable: one second is a unit")


def format_timestamp(when: datetime) -> str:
    """Format as RFC 3339 in UTC, the form of JSON and `--absolute`: `2026-01-31T09:30:00Z`."""
    return when.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
