"""`arctic serve`: run the management service."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from pyarctic.cli.checks import CHECK_COLUMNS, Check, check_catalog, exit_on_fault
from pyarctic.cli.ending import at_signals
from pyarctic.cli.session import Format, HelpOption, JsonOption, note
from pyarctic.cli.view.output import Frame, emit


class LogStyle(enum.StrEnum):
    """How log events are written."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[
    LogStyle, typer.Option("--log-format", help="How events are logged to stderr; auto: json unless it is a terminal.")
]
LogLevelOption = Annotated[str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]


def serve(
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="The port (default: 1630; 0 takes a free one).")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="DIR", help="The folder of database and token (default: $ARCTIC_STATE).")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check configuration and catalogs, and do not start.")] = False,
    log_format: LogFormatOption = LogStyle.AUTO,
    log_level: LogLevelOption = "info",
    as_json: JsonOption = False,
    _help: HelpOption = False,
) -> None:
    """Run the management service.

    \b
    Examples:
      arctic serve
      arctic serve --port 8080 --state /var/lib/arctic

    It watches the tables of all catalogs and has optimizers optimize them, until SIGTERM or Ctrl-C. Start an optimizer with
    `arctic optimizer run`.
    """
    from pyarctic.config import load
    from pyarctic.logs import write_logs

    config = load()
    if check:
        _check(as_json=as_json)
        return
    from pyarctic.server import serve as start

    write_logs(log_format.value, log_level)
    folder = None if state is None else Path(state)
    # The server ends at these signals, and hands them on when it has ended.
    with at_signals(_do_nothing), start(config, host=host, port=port, folder=folder) as running:
        note(f"service at {running.url}; token in {running.token_file}")
        running.server.run()


def _check(*, as_json: bool) -> None:
    from pyarctic.iceberg.catalog import catalog_names

    checks: list[Check] = [check_catalog(name) for name in catalog_names()]
    frame = Frame(columns=CHECK_COLUMNS, rows=[result.to_dict() for result in checks], noun="catalogs", total=len(checks))
    emit(frame, output_format=Format.JSON if as_json else Format.TABLE, limit=0)
    exit_on_fault(checks)


def _do_nothing() -> None:
    """It is no error of this command that it is ended."""
