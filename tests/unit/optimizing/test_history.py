"""What snapshots tell of the tasks in them."""

from __future__ import annotations

import pytest

from pyarctic.optimizing.observe.history import format_ids


@pytest.mark.parametrize(("ids", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([7, 0, 2, 1, 9, 8, 5], "0-2,5,7-9")])
def test_ids_are_told_as_ranges(ids: list[int], text: str) -> None:
    assert format_ids(ids) == text
