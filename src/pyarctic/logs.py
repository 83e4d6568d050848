"""Loggers: events with facts, over the logging of the standard library.

    log = get_logger(__name__).bind(table="demo.shop.orders")
    log.info("commit_landed", snapshot_id=17)      # commit_landed table=demo.shop.orders snapshot_id=17

Nothing is shown unless the program configures logging; `write_logs` does it for programs of our own. Names of events are
verbs in the past tense; facts are never formatted into them, so that a handler can write them as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TextIO

LogFormat = Literal["auto", "text", "json"]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """The message of a log record."""

    name: str
    facts: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.facts.items() if value is not None)])


@dataclass(frozen=True, slots=True)
class Log:
    """A logger with facts that all of its events have."""

    logger: logging.Logger
    context: Mapping[str, object] = field(default_factory=dict)

    def bind(self, **context: object) -> Log:
        """This logger with more of them."""
        return Log(self.logger, {**self.context, **context})

    def debug(self, event: str, **facts: object) -> None:
        """Log what only developers need."""
        self._log(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        """Log what happens as it should."""
        self._log(logging.INFO, event, facts)

    def warning(self, event: str, *, error: BaseException | None = None, **facts: object) -> None:
        """Log what did not work and is tried again, or left for later."""
        self._log(logging.WARNING, event, facts, error)

    def error(self, event: str, *, error: BaseException | None = None, **facts: object) -> None:
        """Log what somebody should look at."""
        self._log(logging.ERROR, event, facts, error)

    def _log(self, level: int, event: str, facts: Mapping[str, object], error: BaseException | None = None) -> None:
        if self.logger.isEnabledFor(level):
            self.logger.log(level, LogEvent(event, {**self.context, **facts}), exc_info=error, stacklevel=3)


def get_logger(name: str) -> Log:
    """The logger of a module."""
    return Log(logging.getLogger(name))


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message: object = record.msg
        event = message if isinstance(message, LogEvent) else LogEvent(record.getMessage(), {})
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event.name,
            **event.facts,
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def write_logs(style: LogFormat = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Write events to stderr or a file: for people on a terminal, else a JSON document in each line."""
    stream = stream or sys.stderr
    is_text = style == "text" or (style == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_TextFormatter() if is_text else _JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pyarctic").setLevel(level.upper())


logging.getLogger("pyarctic").addHandler(logging.NullHandler())
