"""Sizes, counts and ages as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pyarctic.units import format_age, format_bytes, format_count, format_timestamp

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1503238553, "1.4 GiB"),
        (5 * 1024**5, "5.0 PiB"),
        (5000 * 1024**5, "5000.0 PiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes_are_binary(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_counts_have_separators() -> None:
    assert [format_count(count) for count in (0, 999, 1000, 1234567)] == ["0", "999", "1,000", "1,234,567"]


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(), "just now"),
        (timedelta(seconds=1), "1 s ago"),
        (timedelta(seconds=59), "59 s ago"),
        (timedelta(minutes=3, seconds=50), "3 min ago"),
        (timedelta(hours=5), "5 h ago"),
        (timedelta(days=1), "1 day ago"),
        (timedelta(days=29), "29 days ago"),
        (timedelta(days=70), "2 months ago"),
        (timedelta(days=366), "1 year ago"),
        (-timedelta(seconds=5), "in 5 s"),
    ],
)
def test_ages(age: timedelta, text: str) -> None:
    assert format_age(NOW - age, NOW) == text


def test_instants_are_rfc_3339_in_utc() -> None:
    assert format_timestamp(NOW) == "2026-03-01T12:00:00Z"
    there = datetime(2026, 3, 1, 14, 0, 0, 120000, tzinfo=timezone(timedelta(hours=2)))
    assert format_timestamp(there) == "2026-03-01T12:00:00.120000Z"
