"""One tree of errors; each tells what happened, why, and what to do next.

    ArcticError
        UsageError          the call itself is wrong: an unknown column, a bad expression
        ConfigError         the configuration is missing, unreadable or wrong
        NotFound            a catalog, table, snapshot or branch does not exist
        Unavailable         a catalog or store could not be reached; trying again may help
        Unsupported         the table has or is something this version cannot handle
        Damaged             a file of the table is missing, truncated or contradicts the metadata
        Conflict            others kept committing first; the same change may be tried again
        Rejected            a change does not fit the table as it is now; it must be planned anew
        OutcomeUnknown      the catalog did not say whether it took a commit; committing the same change again tells

An error's message is one line naming the object. Its facts (table, file, key …) are attributes in `facts`, so that
a caller, the HTTP API and `--json` need not take the text apart. `code` is stable and documented in docs/errors.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class ArcticError(Exception):
    """Root of everything PyArctic raises on purpose."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "PyArctic could not go on"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, Any] = facts

    def __str__(self) -> str:
        table = self.facts.get("table")
        return f"{table}: {self.message}" if table and str(table) not in self.message else self.message

    def to_dict(self) -> dict[str, Any]:
        """The error as the `--json` output and the HTTP API show it."""
        facts = {key: value if isinstance(value, int | float | bool) else str(value) for key, value in self.facts.items()}
        return {
            "code": self.code,
            "title": self.title,
            "detail": str(self),
            "hint": self.hint,
            "retryable": self.retryable,
            "facts": facts,
        }


class UsageError(ArcticError):
    code = "usage"
    title = "The request is not valid"


class ConfigError(ArcticError):
    code = "config"
    title = "The configuration is not valid"


class NotFound(ArcticError):
    code = "not-found"
    title = "No such object"


class Unavailable(ArcticError):
    code = "unavailable"
    title = "A service could not be reached"
    retryable = True


class Unsupported(ArcticError):
    code = "unsupported"
    title = "PyArctic cannot do this with such a table yet"


class Damaged(ArcticError):
    code = "damaged"
    title = "A file of the table is missing or corrupt"


class Conflict(ArcticError):
    code = "conflict"
    title = "Other commits came first"
    retryable = True


class Rejected(ArcticError):
    code = "rejected"
    title = "The change does not fit the table any more"


class OutcomeUnknown(ArcticError):
    code = "outcome-unknown"
    title = "The catalog did not say whether it took the commit"
    retryable = True


@contextmanager
def about(**facts: Any) -> Iterator[None]:
    """Add facts the inner code could not know (which table, which snapshot) to any ArcticError passing through."""
    try:
        yield
    except ArcticError as error:
        for key, value in facts.items():
            error.facts.setdefault(key, value)
        raise
