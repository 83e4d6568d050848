"""The root of the command tree and the entry point `main`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from pyarctic._program import prepare_program
from pyarctic._version import __version__
from pyarctic.cli import (
    alter,
    catalog,
    completion,
    create,
    db,
    dev,
    doctor,
    errors,
    events,
    health,
    init,
    optimize,
    optimizer,
    process,
    rollback,
    scan,
    serve,
    steer,
    table,
    table_check,
    write,
)
from pyarctic.cli.session import Format, HelpOption, JsonOption, new_command_group, session
from pyarctic.cli.usage_errors import explain_usage_error
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, ReaderClosed, emit
from pyarctic.errors import UsageError
from pyarctic.termination import Terminated, raise_on_sigterm

ROOT_HELP = """Create, write, read and optimize Iceberg tables.

\b
Examples:
  arctic init
  arctic table health
  arctic table optimize demo.shop.orders

Catalogs are read from --config FILE, $ARCTIC_CONFIG, ./arctic.yaml or ~/.config/arctic/arctic.yaml; the first one wins.
Global options are accepted anywhere on the command line.
"""

app = new_command_group(ROOT_HELP)
table.group.command("create")(create.create)
table.group.command("write")(write.write)
table.group.command("scan")(scan.scan)
table.group.command("changes")(scan.changes)
table.group.command("set")(alter.set_properties)
table.group.command("unset")(alter.unset_properties)
table.group.command("evolve")(alter.evolve)
table.group.command("upgrade")(alter.upgrade)
table.group.command("drop")(create.drop)
table.group.command("check")(table_check.check)
table.group.command("health")(health.health)
table.group.command("explain")(optimize.explain)
table.group.command("optimize")(optimize.optimize)
table.group.command("rollback")(rollback.rollback)
table.group.command("pause")(steer.pause)
table.group.command("resume")(steer.resume)
app.add_typer(catalog.group, name="catalog")
app.add_typer(table.group, name="table")
app.add_typer(process.group, name="process")
app.add_typer(process.tasks, name="task")
app.add_typer(optimizer.group, name="optimizer")
app.add_typer(events.group, name="events")
app.add_typer(db.group, name="db")
app.command("init")(init.init)
app.command("serve")(serve.serve)
app.command("dev")(dev.dev)
app.command("doctor")(doctor.doctor)
app.command("completion")(completion.completion)


@app.callback(invoke_without_command=True, add_help_option=False)
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print notes and progress to stderr.")] = False,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version, like `arctic version`.")] = False,
    _help: HelpOption = False,
) -> None:
    session.debug, session.quiet = debug, quiet
    if show_version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(add_help_option=False)
def version(as_json: JsonOption = False, _help: HelpOption = False) -> None:
    """Show the version of PyArctic.

    \b
    Examples:
      arctic version
      arctic version --json
    """
    row = {"version": __version__, "python": platform.python_version()}
    frame = Frame(columns=(Column("version", "Version", identity=True),), rows=[row], document=row)
    emit(frame, output_format=Format.JSON if as_json else Format.NAME)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    if argv is None:  # this process is the program `arctic`
        prepare_program()
    words = list(sys.argv[1:] if argv is None else argv)
    session.debug = session.quiet = False
    if completion.is_completion(words):
        completion.print_candidates(typer.main.get_command(app), words[1:])
        return errors.SUCCESS
    try:
        with raise_on_sigterm() as terminated:
            return _run(words, terminated)
    except Terminated:  # after the command, or once more
        return errors.EXIT_CODES["terminated"]


def _run(words: list[str], terminated: Event) -> int:
    as_json = wants_json(words)
    arguments = words
    try:
        arguments, config = extract_global_options(words)
        if config is not None:
            from pyarctic.config import use

            use(config)
        result = typer.main.get_command(app).main(args=arguments, prog_name="arctic", standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else errors.SUCCESS
        if code == errors.EXIT_CODES["interrupted"] or terminated.is_set():
            raise KeyboardInterrupt
        return code
    except (ReaderClosed, BrokenPipeError):
        # The reader (`| head`) has closed the pipe. Python flushes stdout once more at exit: redirect that to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.EXIT_CODES["terminated"] if terminated.is_set() else errors.SUCCESS
    except typer.TyperException as error:
        message, hint = explain_usage_error(error, typer.main.get_command(app), arguments)
        return errors.print_problem(errors.usage_problem(message, hint), as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        # Typer has turned the exception into an exit code.
        interruption = Terminated() if terminated.is_set() else KeyboardInterrupt()
        return errors.print_problem(errors.to_problem(interruption), as_json=as_json)
    except Exception as error:  # noqa: BLE001 - any error becomes one line and an exit code
        cause = Terminated() if terminated.is_set() else error  # what fails while cleaning up is not what ended it
        return errors.print_problem(errors.to_problem(cause), as_json=as_json, error=error if session.debug else None)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether JSON output was requested; read from the raw arguments, because parsing them may fail."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    is_single_word = "--json" in words or "--format=json" in words
    return is_single_word or ("--format", "json") in pairwise(words)


def extract_global_options(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Move `--debug` and `--quiet` to the front of the arguments, and take out the file of `--config FILE`.

    `--config` is not a Typer option, because Typer loads pydantic to convert any value, even for `--help`.
    """
    front: list[str] = []
    rest: list[str] = []
    config: Path | None = None
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in ("--debug", "--quiet", "-q"):
            front.append(word)
        elif word == "--config" or word.startswith("--config="):
            value = word.partition("=")[2] or next(words, "")
            if not value:
                raise UsageError("--config requires a file", hint="Write it as: --config arctic.yaml.")
            config = Path(value)
        else:
            rest.append(word)
    return front + rest, config
