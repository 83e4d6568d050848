"""The root of the command tree, and the one place where a run begins and ends."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from pyarctic._version import __version__
from pyarctic.cli import alter, catalog, create, doctor, errors, optimize, scan, table, write
from pyarctic.cli.session import Format, HelpOption, JsonOption, new_group, session
from pyarctic.cli.view.columns import Column
from pyarctic.cli.view.output import Frame, ReaderGone, emit
from pyarctic.errors import UsageError

ROOT_HELP = """Keep lakehouse tables healthy.

\b
Example:
  arctic table ls

Catalogs come from --config FILE, $ARCTIC_CONFIG, ./arctic.yaml or ~/.config/arctic/arctic.yaml, whichever is first.
--config, --debug and --quiet may stand anywhere on the line.
"""

app = new_group(ROOT_HELP)
table.group.command("create")(create.create)
table.group.command("write")(write.write)
table.group.command("scan")(scan.scan)
table.group.command("changes")(scan.changes)
table.group.command("set")(alter.set_properties)
table.group.command("unset")(alter.unset_properties)
table.group.command("evolve")(alter.evolve)
table.group.command("drop")(create.drop)
table.group.command("explain")(optimize.explain)
table.group.command("optimize")(optimize.optimize)
table.group.command("rollback")(optimize.rollback)
app.add_typer(catalog.group, name="catalog")
app.add_typer(table.group, name="table")
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True, add_help_option=False)
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr.")] = False,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version, as `arctic version` does.")] = False,
    _asked: HelpOption = False,
) -> None:
    session.debug, session.quiet = debug, quiet
    if show_version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(add_help_option=False)
def version(as_json: JsonOption = False, _asked: HelpOption = False) -> None:
    """Show the version of PyArctic.

    \b
    Example:
      arctic version
    """
    row = {"version": __version__, "python": platform.python_version()}
    frame = Frame(columns=(Column("version", "Version", identity=True),), rows=[row], document=row)
    emit(frame, output_format=Format.JSON if as_json else Format.NAME)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; nothing is raised."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = wants_json(words)
    session.debug = session.quiet = False
    try:
        arguments, config = globals_first(words)
        if config is not None:
            from pyarctic.config import use

            use(config)
        result = typer.main.get_command(app).main(args=arguments, prog_name="arctic", standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else errors.DONE
        if code == errors.EXIT_CODES["interrupted"]:
            raise KeyboardInterrupt
        return code
    except (ReaderGone, BrokenPipeError):
        # The reader (`| head`) has all it wanted. Python flushes stdout once more when it ends: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.DONE
    except typer.TyperException as error:
        return errors.tell(errors.usage_problem(_message_of(error), _help_hint(error)), as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return errors.tell(errors.problem_of(KeyboardInterrupt()), as_json=as_json)
    except Exception as error:  # noqa: BLE001 - whatever it is, people get one line and an exit code
        return errors.tell(errors.problem_of(error), as_json=as_json, error=error if session.debug else None)


def _message_of(error: typer.TyperException) -> str:
    return error.format_message().replace(": Value error, ", ": ")  # pydantic's word for it, not ours


def _help_hint(error: typer.TyperException) -> str | None:
    path = getattr(getattr(error, "ctx", None), "command_path", None)
    return f"`{path} --help` shows what it takes" if path else None


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether JSON was asked for; read from the words, because an error may come before they are parsed."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    short = "--json" in words or "--format=json" in words
    return short or ("--format", "json") in pairwise(words)


def globals_first(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Let `--debug`, `--quiet` and `--config FILE` stand anywhere: flags go to the front, the file is taken out.

    The file is not an option of Typer's, because Typer loads pydantic to look at any value, even for `--help`.
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
                raise UsageError("--config needs a file", hint="arctic --config arctic.yaml table ls")
            config = Path(value)
        else:
            rest.append(word)
    return front + rest, config
