"""What commands about the management service share: the client, options and columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyarctic.cli.view.columns import Column
from pyarctic.errors import ConfigError

if TYPE_CHECKING:
    from pyarctic.client import Client

UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The service, or several with commas (default: $ARCTIC_URL).")
]
TokenFileOption = Annotated[
    str | None, typer.Option("--token-file", metavar="FILE", help="A file with the token (default: $ARCTIC_TOKEN).")
]


def open_client(url: str | None, token_file: str | None) -> Client:
    """A client of the service."""
    from pyarctic.client import connect

    return connect(url, read_token(token_file))


def read_token(token_file: str | None) -> str | None:
    """The token in a file; None without a file."""
    if token_file is None:
        return None
    try:
        return Path(token_file).read_text(encoding="utf-8").strip()
    except OSError as cause:
        raise ConfigError(
            f"cannot read the token file {token_file}: {cause.strerror}", hint="Check --token-file."
        ) from cause


def with_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """An answer of the service with its times as such."""
    return {name: _time(name, value) for name, value in row.items()}


def _time(name: str, value: Any) -> Any:
    is_time = isinstance(value, str) and (name.endswith(("_at", "_until", "_after")) or name == "at")
    return datetime.fromisoformat(value) if is_time else value


PROCESS_COLUMNS = (
    Column("id", "Process", priority=0, identity=True, fit="keep"),
    Column("table", "Table", priority=0, fit="middle"),
    Column("kinds", "Kind", priority=2),
    Column("state", "State", "state", priority=0),
    Column("tasks", "Tasks", "count", priority=3),
    Column("trigger", "Planned", priority=4),
    Column("created_at", "Since", "time", priority=3),
    Column("ended_at", "Ended", "time", priority=5),
    Column("outcome", "Outcome", priority=6, fit="wrap", optional=True),
)
TASK_COLUMNS = (
    Column("id", "Task", priority=0, identity=True, fit="keep"),
    Column("partition", "Partition", priority=2, fit="middle"),
    Column("kind", "Kind", priority=4),
    Column("state", "State", "state", priority=0),
    Column("attempt", "Attempt", "number", priority=2),
    Column("retries", "Retries", "count", priority=5),
    Column("input_files", "Files", "count", priority=4),
    Column("input_bytes", "Size", "bytes", priority=3),
    Column("optimizer_id", "Optimizer", priority=6, fit="keep"),
)
OPTIMIZER_COLUMNS = (
    Column("id", "Optimizer", priority=0, identity=True, fit="keep"),
    Column("group", "Group", priority=3),
    Column("state", "State", "state", priority=0),
    Column("host", "Host", priority=4),
    Column("parallelism", "Parallel", "count", priority=2),
    Column("version", "Version", priority=5),
    Column("heard_at", "Heard of", "time", priority=1),
)
EVENT_COLUMNS = (
    Column("number", "Event", "number", priority=3, identity=True),
    Column("at", "When", "time", priority=0),
    Column("kind", "What", priority=0),
    Column("key", "Which", priority=4, fit="middle"),
    Column("table", "Table", priority=2, fit="middle"),
    Column("before", "From", "state", priority=2),
    Column("after", "To", "state", priority=0),
    Column("why", "Why", priority=1, fit="wrap"),
    Column("by", "By", priority=5),
)
