"""What one run of the command was told for all its parts: quiet, debug, and the options every data command has."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from pyarctic.cli.errors import BAD_ANSWER
from pyarctic.errors import UsageError


@dataclass(slots=True)
class Session:
    """Flags before the noun; set once per run by the root command."""

    quiet: bool = False
    debug: bool = False


session = Session()


class Format(enum.StrEnum):
    """How data is written on stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    NAME = "name"


FormatOption = Annotated[Format, typer.Option("--format", help="How to write the data; `name` gives identifiers only.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
WideOption = Annotated[bool, typer.Option("--wide", help="Show all columns, however narrow the terminal.")]
AbsoluteOption = Annotated[bool, typer.Option("--absolute", help="Show instants rather than ages.")]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="Rows at most; 0 is all. Without it 50 for people, all for machines."),
]
SnapshotOption = Annotated[int | None, typer.Option("--snapshot", metavar="ID", help="As of this snapshot.")]
RefOption = Annotated[str | None, typer.Option("--ref", metavar="NAME", help="As of this branch or tag.")]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="catalog.database.table", show_default=False)]


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


class StoreName(enum.StrEnum):
    """Which store of a keyed table."""

    BASE = "base"
    CHANGE = "change"


StoreOption = Annotated[StoreName, typer.Option("--store", help="Of a keyed table: the merged rows, or the changes.")]


def chosen(output_format: Format, as_json: bool) -> Format:
    """The format after `--json` had its say; another format beside it is refused rather than dropped."""
    if as_json and output_format not in (Format.TABLE, Format.JSON):
        raise UsageError(f"--json and --format {output_format} cannot be combined", hint="name one format")
    return Format.JSON if as_json else output_format


def note(text: str, *, style: str | None = None) -> None:
    """One line for people, on stderr; `--quiet` drops it."""
    if session.quiet:
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(text, style=style or "dim"))


def confirm(what: str, *, yes: bool) -> None:
    """Go on only if `--yes` was given or somebody at a terminal types yes. Nobody else is asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what}, if that is confirmed", hint="add --yes to do it, or --dry-run to look first")
    answer: str = typer.prompt(f"{what}. Type yes to do it", default="no", show_default=False, err=True)
    if answer.strip().lower() != "yes":
        note("not confirmed: nothing was changed")
        raise typer.Exit(BAD_ANSWER)


def progress_wanted() -> bool:
    """Whether somebody sits before stderr who wants to see work go on."""
    quiet = session.quiet or bool(os.environ.get("ARCTIC_NO_PROGRESS")) or os.environ.get("TERM") == "dumb"
    return not quiet and sys.stderr.isatty()


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while long work goes on; nothing at all off a terminal."""
    if not progress_wanted():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(what)):
        yield


def _show_help(context: typer.Context, value: bool) -> None:
    if value:
        typer.echo(context.get_help())
        raise typer.Exit


# Typer's own `--help` is no plain flag: looking at it loads pydantic, even when it is not given.
HelpOption = Annotated[bool, typer.Option("--help", is_eager=True, callback=_show_help, help="Show this message and exit.")]


def _list_verbs(context: typer.Context, _asked: HelpOption = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def new_group(text: str) -> typer.Typer:
    """A noun: plain help (quick, no boxes), verbs listed when none is given."""
    return typer.Typer(
        help=text,
        callback=_list_verbs,
        invoke_without_command=True,
        rich_markup_mode=None,
        add_completion=False,
        add_help_option=False,
    )
