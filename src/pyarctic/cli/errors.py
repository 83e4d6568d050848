"""Errors on the command line: the exit code of each error code, and how errors are printed.

An error is printed to stderr in three parts: the message with the stable code in brackets, the facts, and a hint. With
`--json` it is one JSON line instead. Tracebacks are printed with `--debug` only.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pyarctic.cli.view.layout import terminal_width, wrap_words
from pyarctic.errors import ArcticError
from pyarctic.termination import Terminated

SUCCESS = 0
NEGATIVE_RESULT = 1
"""The command ran, but the result is negative: a check or a task failed, a catalog does not respond."""

EXIT_CODES: Mapping[str, int] = MappingProxyType(
    {
        "not-found": 1,
        "damaged": 1,
        "usage": 2,
        "config": 2,
        "missing-extra": 2,
        "unsupported": 2,
        "error": 2,
        "internal": 2,
        "unavailable": 3,
        "outcome-unknown": 3,
        "not-leading": 3,
        "conflict": 4,
        "rejected": 4,
        "protocol": 4,
        "invalid-transition": 4,
        "stale-attempt": 4,
        "unknown-optimizer": 4,
        "unauthorized": 2,
        "service": 3,
        "interrupted": 130,
        "terminated": 143,
    }
)


def exit_code(code: str) -> int:
    """Return the exit code of an error code; codes that are not in the table count as internal."""
    return EXIT_CODES.get(code, EXIT_CODES["internal"])


def to_problem(error: BaseException) -> dict[str, Any]:
    """Convert any exception to the form of `ArcticError.to_dict()`."""
    if isinstance(error, ArcticError):
        return error.to_dict() | {"hint": error.hint_in(option_text)}
    if isinstance(error, Terminated):
        return _problem("terminated", "The command was terminated", "terminated by SIGTERM", None)
    if isinstance(error, KeyboardInterrupt):
        return _problem("interrupted", "The command was interrupted", "interrupted", None)
    if isinstance(error, OSError) and error.errno in _SYSTEM_ERRORS:
        return _system_problem(error)
    detail = " ".join(str(error).split())
    return _problem(
        "internal",
        "PyArctic encountered an unexpected error",
        f"{type(error).__name__}: {detail}" if detail else type(error).__name__,
        "Run the command again with --debug, and report the traceback.",
    )


_SYSTEM_ERRORS = {
    errno.EACCES: "Check the permissions of the file and of its folder.",
    errno.EPERM: "Check the permissions of the file and of its folder.",
    errno.EROFS: "It is on a file system that can only be read. Choose another place.",
    errno.ENOSPC: "The disk is full. Free some space and try again.",
    errno.EDQUOT: "The quota of the disk is used up. Free some space and try again.",
    errno.ENOENT: "Check the path.",
    errno.ENOTDIR: "A part of the path is a file. Correct the path.",
    errno.EISDIR: "It is a folder. Name a file.",
    errno.EMFILE: "Too many files are open. Raise the limit (`ulimit -n`).",
    errno.EIO: "Check the disk.",
}
"""Errors of the operating system that are no defects of the program, with hints."""


def _system_problem(error: OSError) -> dict[str, Any]:
    reason = (error.strerror or str(error)).split("] ")[-1]
    path = error.filename or ""
    detail = f"{path}: {reason}" if path else reason
    problem = _problem("unavailable", "A service could not be reached", detail, _SYSTEM_ERRORS[error.errno or 0])
    return problem | {"facts": {"file": str(path)} if path else {}}


_OPTIONS = {
    "format": "--table-format",
    "primary_key": "--key",
    "properties": "--property",
    "snapshot_id": "--snapshot",
}
"""Options that are not named like the argument."""


def option_text(name: str, value: str | None) -> str:
    """An argument of the library as an option: `store="base"` is `--store base`."""
    option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
    if value in (None, "True"):
        return option
    if name == "once":
        return f"{option} my-job:42"
    return f"{option} {str(value).strip(chr(39) + chr(34))}"


def usage_problem(message: str, hint: str | None) -> dict[str, Any]:
    """Return an error of the argument parser in the form of `ArcticError.to_dict()`."""
    return _problem("usage", "The request is not valid", message, hint)


def _problem(code: str, title: str, detail: str, hint: str | None) -> dict[str, Any]:
    return {"code": code, "title": title, "detail": detail, "hint": hint, "retryable": False, "facts": {}}


def print_problem(problem: Mapping[str, Any], *, as_json: bool, error: BaseException | None = None) -> int:
    """Print the problem to stderr and return the exit code; `error` adds its traceback."""
    from pyarctic.config import mask_text

    if error is not None:
        sys.stderr.write(mask_text("".join(traceback.format_exception(error))))
    facts = {key: mask_text(value) if isinstance(value, str) else value for key, value in problem["facts"].items()}
    detail = mask_text(problem["detail"])
    if as_json:
        sys.stderr.write(json.dumps({**problem, "detail": detail, "facts": facts}) + "\n")
        return exit_code(problem["code"])

    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    width = terminal_width(sys.stderr)
    first, *rest = wrap_words(f"error[{problem['code']}]: {detail}", width, "  ")
    start = f"error[{problem['code']}]: "
    console.print(Text.assemble(("error", "bold red"), start.removeprefix("error"), (first.removeprefix(start), "bold")))
    for line in rest:
        console.print(Text(line, "bold"))
    for key, value in facts.items():
        # Facts that the first line already contains are not repeated.
        if str(value) not in detail:
            for line in wrap_words(f"  {key.replace('_', ' ')}: {value}", width, "    "):
                console.print(Text(line))
    if problem["hint"]:
        first, *rest = wrap_words(f"  hint: {problem['hint']}", width, "  ")
        console.print(Text.assemble(("  hint: ", "bold cyan"), first.removeprefix("  hint: ")))
        for line in rest:
            console.print(Text(line))
    return exit_code(problem["code"])
