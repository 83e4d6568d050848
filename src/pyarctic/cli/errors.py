"""Errors on the command line: one table from code to exit code, and one way of telling them.

An error is told on stderr in three parts: what happened with the stable code in brackets, the facts, and a hint. With
`--json` it is one JSON line instead. Tracebacks appear with `--debug` only.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pyarctic.errors import ArcticError

DONE = 0
BAD_ANSWER = 1
"""The command ran, but the answer is bad: doctor found a fault, a catalog does not answer."""

EXIT_CODES: Mapping[str, int] = MappingProxyType(
    {
        "not-found": 1,
        "damaged": 1,
        "usage": 2,
        "config": 2,
        "unsupported": 2,
        "error": 2,
        "internal": 2,
        "unavailable": 3,
        "outcome-unknown": 3,
        "conflict": 4,
        "rejected": 4,
        "interrupted": 130,
    }
)


def exit_code(code: str) -> int:
    """The exit code of an error; a code this table does not know yet counts as internal."""
    return EXIT_CODES.get(code, EXIT_CODES["internal"])


def problem_of(error: BaseException) -> dict[str, Any]:
    """Any exception in the shape of `ArcticError.to_dict()`."""
    if isinstance(error, ArcticError):
        return error.to_dict()
    if isinstance(error, KeyboardInterrupt):
        return _problem("interrupted", "The command was interrupted", "interrupted", None)
    detail = " ".join(str(error).split())
    return _problem(
        "internal",
        "PyArctic met something it did not expect",
        f"{type(error).__name__}: {detail}" if detail else type(error).__name__,
        "run again with --debug for the traceback",
    )


def usage_problem(message: str, hint: str | None) -> dict[str, Any]:
    """What the parser of arguments refused, in the shape of `ArcticError.to_dict()`."""
    return _problem("usage", "The request is not valid", message, hint)


def _problem(code: str, title: str, detail: str, hint: str | None) -> dict[str, Any]:
    return {"code": code, "title": title, "detail": detail, "hint": hint, "retryable": False, "facts": {}}


def tell(problem: Mapping[str, Any], *, as_json: bool, error: BaseException | None = None) -> int:
    """Tell the problem on stderr and return the exit code; `error` adds its traceback."""
    from pyarctic.config import masked_text

    if error is not None:
        sys.stderr.write(masked_text("".join(traceback.format_exception(error))))
    facts = {key: masked_text(value) if isinstance(value, str) else value for key, value in problem["facts"].items()}
    detail = masked_text(problem["detail"])
    if as_json:
        sys.stderr.write(json.dumps({**problem, "detail": detail, "facts": facts}) + "\n")
        return exit_code(problem["code"])

    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("error", "bold red"), f"[{problem['code']}]: ", (detail, "bold")))
    for key, value in facts.items():
        # What the first line already says is not worth a second one.
        if str(value) not in detail:
            console.print(Text(f"  {key.replace('_', ' ')}: {value}"))
    if problem["hint"]:
        console.print(Text.assemble(("  hint: ", "bold cyan"), problem["hint"]))
    return exit_code(problem["code"])
