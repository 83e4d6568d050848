"""The short form: twenty statements during optimizing, ten in each mode, and none of them fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.session import NAME, Oracle
from tests.stress import live_writers

pytestmark = pytest.mark.jvm


@pytest.mark.parametrize(("version", "mode"), [(2, "copy-on-write"), (3, "merge-on-read")])
def test_no_statement_fails(oracle: Oracle, tmp_path: Path, version: int, mode: str) -> None:
    result = live_writers.run(
        f"v{version}-{mode}",
        tmp_path,
        oracle.spark,
        NAME,
        oracle.catalog.properties,
        version=version,
        mode=mode,
        statements=10,
    )
    assert result.failed == [], str(result)
    assert result.wrong_rows == 0, str(result)
    assert result.worst_other >= 90, str(result)
    assert result.commits > 0, str(result)
