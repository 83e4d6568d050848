"""What the command line and worker processes do to start fast, and a library does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

_COUNT_COLLECTIONS = """
import gc, sys
{prepare}
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]) if phase == "stop" else None)
import pyarctic.optimizing.execute.worker
print("pandas" in sys.modules, collections.count(2))
"""
_PREPARE = "from pyarctic._program import prepare_program; prepare_program()"


def _import_worker(prepare: str) -> list[str]:
    program = _COUNT_COLLECTIONS.format(prepare=prepare)
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()


def test_imports_of_a_program_look_through_all_objects_at_most_once() -> None:
    has_pandas, full_collections = _import_worker(_PREPARE)
    assert has_pandas == "False"
    assert int(full_collections) <= 1


def test_imports_of_a_library_leave_the_settings_of_its_program_alone() -> None:
    program = "import gc; before = gc.get_threshold(); import pyarctic.optimizing; assert gc.get_threshold() == before"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("command", ["--version", "--help"])
def test_the_command_line_ends_with_its_exit_code(command: str) -> None:
    ended = subprocess.run([sys.executable, "-m", "pyarctic.cli", command], check=False, capture_output=True)
    assert ended.returncode == 0
    refused = subprocess.run([sys.executable, "-m", "pyarctic.cli", "nothing"], check=False, capture_output=True)
    assert refused.returncode == 2
