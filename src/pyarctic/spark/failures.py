"""What goes wrong on executors, told on the driver: PyArctic's errors as they are, Spark's by the line that tells most."""

from __future__ import annotations

import re
from typing import Any

from pyarctic import errors
from pyarctic.errors import ArcticError

_LONGEST_REASON = 500
_FAULT_OF_DATA = re.compile(r"(\[[A-Z_.]+\] .*?) SQLSTATE: (22\w{3}|P0001)$", re.MULTILINE)
"""An expression of the frame refused a row: Spark's own errors about data, and those that users raise."""


def to_document(error: ArcticError) -> dict[str, Any]:
    """An error as an executor answers it."""
    facts = {key: value if isinstance(value, int | float | bool) else str(value) for key, value in error.facts.items()}
    return {"code": error.code, "message": error.message, "hint": error.hint, "facts": facts}


def from_document(document: dict[str, Any]) -> ArcticError:
    """The same error on the driver."""
    kinds = {kind.code: kind for kind in ArcticError.__subclasses__()}
    kind = kinds.get(document["code"], errors.Unavailable)
    return kind(document["message"], hint=document["hint"], **document["facts"])


def of_job(error: Exception, hint: str, **facts: Any) -> ArcticError:
    """Why a job of Spark that writes rows came to nothing."""
    if found := _FAULT_OF_DATA.search(str(error)):  # trying again would not help
        return errors.UsageError(f"the rows cannot be computed: {found.group(1)[:_LONGEST_REASON]}", hint=hint, **facts)
    return errors.Unavailable(f"Spark could not write the rows: {reason(error)}", hint=hint, **facts)


def reason(error: BaseException) -> str:
    """What Python raised on the executor, or why the job was given up."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(?!org\.|java\.)[\w.]+(Error|Exception): ", line)]
    given_up = [line for line in lines if "Job aborted" in line]
    return (raised[-1:] or given_up or lines or [type(error).__name__])[0][:_LONGEST_REASON]
