"""The short form of the chaos run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyarctic import config
from tests.chaos.run import Run

SECONDS, FAULTS = 25, 15


@pytest.mark.timeout(600)
def test_whatever_happens_nothing_is_lost_done_twice_or_left_over(tmp_path: Path) -> None:
    config.reset()
    try:
        result = Run(tmp_path, "short", seconds=SECONDS, faults=FAULTS).run()
    finally:
        config.reset()
    assert result.failures == [], f"{result}\nin {tmp_path}"
    assert result.comparisons
