"""Errors of the operating system are no internal errors, and hints name options."""

from __future__ import annotations

import errno
import os

import pytest

from pyarctic.cli.errors import exit_code, option_text, to_problem
from pyarctic.errors import UsageError


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.ENOENT])
def test_errors_of_the_system(number: int) -> None:
    problem = to_problem(OSError(number, os.strerror(number), "/lake/x"))
    assert (problem["code"], exit_code(problem["code"])) == ("unavailable", 3)
    assert problem["detail"] == f"/lake/x: {os.strerror(number)}"
    assert problem["hint"].endswith(".")
    assert to_problem(OSError("odd"))["code"] == "internal"


def test_hints_name_arguments_or_options() -> None:
    hint = 'Use [[store="base"]], [[snapshot_id]] or [[across_partitions=True]].'
    error = UsageError("no", hint=hint)
    assert error.hint == 'Use store="base", snapshot_id or across_partitions=True.'
    assert to_problem(error)["hint"] == "Use --store base, --snapshot or --across-partitions."
    assert option_text("once", '("my-job", 42)') == "--once my-job:42"
