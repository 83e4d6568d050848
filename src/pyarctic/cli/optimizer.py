"""`arctic optimizer`: run an optimizer, and look at those of a service."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pyarctic.cli.ending import at_signals
from pyarctic.cli.remote import (
    OPTIMIZER_COLUMNS,
    TASK_COLUMNS,
    TokenFileOption,
    UrlOption,
    open_client,
    read_token,
    with_times,
)
from pyarctic.cli.serve import LogFormatOption, LogLevelOption, LogStyle
from pyarctic.cli.session import (
    AbsoluteOption,
    Format,
    FormatOption,
    JsonOption,
    WideOption,
    new_command_group,
    note,
    resolve_format,
)
from pyarctic.cli.view.facts import facts_section
from pyarctic.cli.view.output import Frame, Section, emit, emit_details
from pyarctic.errors import UsageError
from pyarctic.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from pyarctic.optimizing.execute import Engine

group = new_command_group(
    "Run optimizers, and look at those of the service.\n\n\b\nExamples:\n  arctic optimizer run\n  arctic optimizer ls"
)
OptimizerArgument = Annotated[str, typer.Argument(metavar="OPTIMIZER", help="The id of an optimizer.", show_default=False)]
_VARIABLES: Mapping[str, tuple[str, str]] = {
    "url": ("ARCTIC_URL", "AMS_THRIFT_SERVER_URL"),
    "group": ("ARCTIC_GROUP", "OPTIMIZE_GROUP_NAME"),
    "parallelism": ("ARCTIC_PARALLELISM", "EXECUTOR_PARALLELISM"),
    "memory": ("ARCTIC_MEMORY", "EXECUTOR_MEMORY"),
}
"""The variables of each option: ours, and the original name."""


@group.command("run")
def run(  # long: option declarations
    url: Annotated[
        str | None, typer.Option("--url", "-a", metavar="URL", help="The service (default: $ARCTIC_URL).")
    ] = None,
    group_name: Annotated[
        str | None, typer.Option("--group", "-qn", metavar="NAME", help="The optimizer group (default: default).")
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", "-p", min=1, metavar="N", help="Tasks at a time (default: cores).")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", "-m", metavar="SIZE", help="Of all tasks together, such as 2GB.")
    ] = None,
    heart_beat: Annotated[
        str, typer.Option("--heart-beat", metavar="DURATION", help="How often it tells that it is there.")
    ] = "10s",
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="What executes tasks: local, spark …")] = "local",
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Of Spark: spark://host:7077, yarn, k8s://…, sc://host.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    token_file: TokenFileOption = None,
    log_format: LogFormatOption = LogStyle.AUTO,
    log_level: LogLevelOption = "info",
) -> None:
    """Execute tasks of a service until SIGTERM or Ctrl-C.

    \b
    Examples:
      arctic optimizer run
      arctic optimizer run --url http://10.0.0.5:1630 --parallelism 4 --memory 4GB
      arctic optimizer run --engine spark --master spark://10.0.0.9:7077

    With Spark it is one application, which executes tasks in executors: as many as these have room for, unless
    --parallelism says how many.

    At the first signal it finishes its tasks and takes no more; at the second it stops them, and others get them.
    """
    from pyarctic.client import Address, OptimizerClient
    from pyarctic.logs import write_logs
    from pyarctic.optimizer import Optimizer

    workers = parallelism or _number(_variable("parallelism"), "EXECUTOR_PARALLELISM")
    size = memory or _variable("memory")
    write_logs(log_format.value, log_level)
    service = OptimizerClient(Address.find(url or _variable("url"), read_token(token_file)))
    optimizer = Optimizer(
        service,
        _open_engine(engine, workers, master, conf or ()),
        group=group_name or _variable("group") or "default",
        memory_bytes=None if size is None else _memory_bytes(size),
        heartbeat_seconds=_heartbeat_seconds(heart_beat),
    )
    signals = itertools.count(1)

    def end() -> None:
        if next(signals) == 1:
            note("finishing its tasks; once more to stop them")
            optimizer.drain()
        else:
            optimizer.stop()

    with at_signals(end):
        optimizer.run()


def _open_engine(name: str, workers: int | None, master: str | None, conf: Sequence[str]) -> Engine:
    if name != "spark":
        from pyarctic.optimizing.execute import open_engine

        if master is not None or conf:
            raise UsageError("--master and --conf are for Spark", hint="Add --engine spark.")
        return open_engine(name, workers or os.cpu_count() or 1)
    from pyarctic.spark import open_spark_engine

    settings = dict(each.partition("=")[::2] for each in conf)
    if any("=" not in each for each in conf):
        raise UsageError("--conf needs a key and a value", hint="Write --conf spark.executor.memory=2g.")
    return open_spark_engine(workers, master, settings)


def _variable(option: str) -> str | None:
    return next((value for name in _VARIABLES[option] if (value := os.environ.get(name))), None)


def _number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{name} is {text!r}, and must be a number above 0")
    return int(text)


def _memory_bytes(text: str) -> int:
    """Bare numbers are MiB, as in the original system."""
    try:
        return int(text) << 20 if text.isdigit() else parse_bytes(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a size", hint="Write it as 2GB or 512MiB.") from None


def _heartbeat_seconds(text: str) -> float:
    """Bare numbers are milliseconds, as in the original system."""
    try:
        return int(text) / 1000 if text.isdigit() else parse_duration(text).total_seconds()
    except ValueError:
        raise UsageError(f"{text!r} is not a duration", hint="Write it as 10s or 1min.") from None


@group.command("ls")
def ls(
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """List optimizers, the newest first.

    \b
    Examples:
      arctic optimizer ls
      arctic optimizer ls --json
    """
    with open_client(url, token_file) as client:
        rows = [with_times(row) for row in client.optimizers()]
    frame = Frame(columns=OPTIMIZER_COLUMNS, rows=rows, noun="optimizers", total=len(rows))
    emit(frame, output_format=resolve_format(output_format, as_json), wide=wide, absolute=absolute)


@group.command("show")
def show(
    optimizer: OptimizerArgument,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
    wide: WideOption = False,
    absolute: AbsoluteOption = False,
) -> None:
    """Show an optimizer and what it executes.

    \b
    Examples:
      arctic optimizer show ID
      arctic optimizer show ID --json
    """
    with open_client(url, token_file) as client:
        document = with_times(client.optimizer(optimizer))
    executing = [with_times(task) for task in document.get("executing") or ()]
    facts = [(name.replace("_", " "), value) for name, value in document.items() if not isinstance(value, list | None)]
    sections = [facts_section(None, facts), Section(title="Executes", frame=Frame(columns=TASK_COLUMNS, rows=executing))]
    resolved = resolve_format(output_format, as_json)
    emit_details({**document, "name": optimizer}, sections, output_format=resolved, absolute=absolute, wide=wide)


@group.command("drain")
def drain(
    optimizer: OptimizerArgument, url: UrlOption = None, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Let an optimizer finish what it executes, and end.

    \b
    Examples:
      arctic optimizer drain ID
      arctic optimizer drain ID --json
    """
    with open_client(url, token_file) as client:
        row = with_times(client.drain(optimizer))
    frame = Frame(columns=OPTIMIZER_COLUMNS, rows=[row], document=row)
    emit(frame, output_format=Format.JSON if as_json else Format.TABLE)
