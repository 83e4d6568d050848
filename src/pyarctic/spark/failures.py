"""Errors of executors on the driver: PyArctic's errors as they are, Spark's errors by their most informative line."""

from __future__ import annotations

import re
from typing import Any

from pyarctic import errors
from pyarctic.errors import ArcticError

_MAX_REASON_LENGTH = 500
_DATA_ERROR = re.compile(r"(\[[A-Z_.]+\] .*?) SQLSTATE: (22\w{3}|P0001)$", re.MULTILINE)
"""An expression of the frame failed for a row: Spark's own data errors, and those raised by users."""


def to_document(error: ArcticError) -> dict[str, Any]:
    """Convert an error to JSON types, to return it from an executor."""
    facts = {key: value if isinstance(value, int | float | bool) else str(value) for key, value in error.facts.items()}
    return {"code": error.code, "message": error.message, "hint": error.hint, "facts": facts}


def from_document(document: dict[str, Any]) -> ArcticError:
    """Restore the error on the driver."""
    kinds = {kind.code: kind for kind in ArcticError.__subclasses__()}
    kind = kinds.get(document["code"], errors.Unavailable)
    return kind(document["message"], hint=document["hint"], **document["facts"])


def job_error(error: Exception, hint: str, **facts: Any) -> ArcticError:
    """The error for a failed Spark job that writes rows."""
    if match := _DATA_ERROR.search(str(error)):  # a retry would not help
        return errors.UsageError(f"the rows cannot be computed: {match.group(1)[:_MAX_REASON_LENGTH]}", hint=hint, **facts)
    return errors.Unavailable(f"Spark could not write the rows: {failure_reason(error)}", hint=hint, **facts)


def failure_reason(error: BaseException) -> str:
    """The exception that Python raised on the executor, or why the job was aborted."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(?!org\.|java\.)[\w.]+(Error|Exception): ", line)]
    aborted = [line for line in lines if "Job aborted" in line]
    return (raised[-1:] or aborted or lines or [type(error).__name__])[0][:_MAX_REASON_LENGTH]
