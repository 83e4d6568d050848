"""The exceptions of PyArctic. Each has a message, a stable code, facts, and often a hint what to do next.

    ArcticError
        UsageError          the call itself is wrong: an unknown column, a bad expression
        ConfigError         the configuration is missing, unreadable or wrong
        MissingExtra        a package is not installed that this call needs
        NotFound            a catalog, table, snapshot or branch does not exist
        Unavailable         a catalog or storage could not be reached; a retry may help
        Unsupported         the table uses a feature that this version does not support
        Damaged             a file of the table is missing, truncated or contradicts the metadata
        Conflict            concurrent commits won until all retries were used up; the same change can be retried
        Rejected            a change does not fit the current state of the table; it must be planned again
        OutcomeUnknown      the outcome of a commit is unknown; committing the same change again will show it
        ProtocolError       a plan, task or result of another program is not as the protocol says
        Unauthorized        the service does not accept the token, or the secret of the optimizer
        StaleAttempt        another attempt at a task has taken the place of this one
        UnknownOptimizer    the service does not know the optimizer, or has taken it for lost
        NotLeading          of several services with one database, another one leads

Hints refer to arguments as `[[store="base"]]` or `[[where]]`. In Python this reads `store="base"` and `where`; the command
line shows its options instead.

The message is one line that names the object. Its facts (table, file, key …) are in `facts`, so that callers and `--json`
need not parse the message. `code` is stable and documented in docs/reference/errors.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Self

_ARGUMENT = re.compile(r"\[\[(?P<name>[a-z_]+)(?:=(?P<value>.*?))?\]\]")
ArgumentStyle = Callable[[str, str | None], str]
"""Writes an argument, given by its name and the Python text of its value, if it has one."""


def python_argument(name: str, value: str | None) -> str:
    """An argument as it is written in Python."""
    return name if value is None else f"{name}={value}"


def write_arguments(text: str, style: ArgumentStyle) -> str:
    """The text with its references to arguments in a certain style."""
    return _ARGUMENT.sub(lambda match: style(match["name"], match["value"]), text)


class ArcticError(Exception):
    """The base class of all exceptions that PyArctic raises on purpose.

    try:
        pyarctic.optimize("demo.shop.orders")
    except ArcticError as error:
        print(error.code, error, error.hint, error.facts)
    """

    code: str = "error"
    title: str = "PyArctic could not continue"
    retryable: bool = False

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self._hint = hint
        self.facts: dict[str, Any] = facts
        for key, value in facts.items():
            self._note_fact(key, value)
        if hint is not None:
            self.add_note(f"hint: {self.hint}")

    def _note_fact(self, key: str, value: Any) -> None:
        """Let tracebacks show a fact, unless the message has it."""
        if key != "table" and str(value) not in self.message:
            self.add_note(f"{key.replace('_', ' ')}: {value}")

    def __str__(self) -> str:
        table = self.facts.get("table")
        return f"{table}: {self.message}" if table and str(table) not in self.message else self.message

    @property
    def hint(self) -> str | None:
        """What to do, or None."""
        return self.hint_in(python_argument)

    @hint.setter
    def hint(self, text: str | None) -> None:
        self._hint = text

    def hint_in(self, style: ArgumentStyle) -> str | None:
        """The hint, with arguments as a certain interface names them."""
        return None if self._hint is None else write_arguments(self._hint, style)

    def to_dict(self) -> dict[str, Any]:
        """The error in the form of `--json`."""
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
    """The call itself is wrong: an unknown column, an invalid expression."""

    code = "usage"
    title = "The request is not valid"


class ConfigError(ArcticError):
    """The configuration is missing, unreadable or invalid."""

    code = "config"
    title = "The configuration is not valid"


class MissingExtra(ArcticError):
    """A package is not installed that this call needs; the message tells how to install it."""

    code = "missing-extra"
    title = "A package is not installed"


class NotFound(ArcticError):
    """A catalog, table, snapshot or branch does not exist."""

    code = "not-found"
    title = "No such object"


class Unavailable(ArcticError):
    """A catalog or storage could not be reached; a retry may help."""

    code = "unavailable"
    title = "A service could not be reached"
    retryable = True


class Unsupported(ArcticError):
    """The table uses a feature that this version does not support."""

    code = "unsupported"
    title = "PyArctic does not support this for such a table"


class Damaged(ArcticError):
    """A file of the table is missing, truncated or contradicts the metadata."""

    code = "damaged"
    title = "A file of the table is missing or corrupt"


class Conflict(ArcticError):
    """Concurrent commits won until all retries were used up; the same change can be retried."""

    code = "conflict"
    title = "Concurrent commits came first"
    retryable = True


class Rejected(ArcticError):
    """A change does not fit the current state of the table; it must be planned again."""

    code = "rejected"
    title = "The change does not fit the table any more"


class OutcomeUnknown(ArcticError):
    """The outcome of a commit is unknown; committing the same change again will show it."""

    code = "outcome-unknown"
    title = "The outcome of the commit is unknown"
    retryable = True


class ProtocolError(ArcticError):
    """A plan, task or result of another program is not as the protocol says."""

    code = "protocol"
    title = "A message is not as the protocol says"


class Unauthorized(ArcticError):
    """The service does not accept the token, or the secret of the optimizer."""

    code = "unauthorized"
    title = "The service does not accept the credentials"


class StaleAttempt(ArcticError):
    """Another attempt at the task has taken the place of this one: whoever works on it stops, and its report changes
    nothing."""

    code = "stale-attempt"
    title = "Another attempt has taken its place"


class UnknownOptimizer(ArcticError):
    """The service does not know the optimizer, or has taken it for lost: it stops its tasks and registers again."""

    code = "unknown-optimizer"
    title = "The optimizer is not registered"


class NotLeading(Unavailable):
    """Of the services with this database another one leads, or none does for some seconds: only the one that leads changes
    anything."""

    code = "not-leading"
    title = "Another service leads"

    @classmethod
    def at(cls, url: str) -> Self:
        """The error of a service that does not lead. `url`: where the one is that does; empty if there is none."""
        hint = f"Send it to {url}." if url else "Try again in some seconds: another service takes over."
        return cls("this service does not lead", hint=hint, leader=url)


@contextmanager
def about(**facts: Any) -> Iterator[None]:
    """Add facts that the inner code does not know (table, snapshot) to any ArcticError that passes through."""
    try:
        yield
    except ArcticError as error:
        for key, value in facts.items():
            if key not in error.facts:
                error.facts[key] = value
                error._note_fact(key, value)
        raise


def import_extra(module: str, extra: str) -> Any:
    """Import a module that not every installation has. `extra`: what installs it, as in `pyarctic[pandas]`."""
    try:
        return import_module(module)
    except ModuleNotFoundError as cause:
        package = module.partition(".")[0]
        if cause.name is not None and cause.name.partition(".")[0] != package:  # it is there, and lacks something itself
            raise
        message = f"{package} is not installed: pip install 'pyarctic[{extra}]'"
        raise MissingExtra(message, module=module, extra=extra) from cause
