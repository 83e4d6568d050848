"""Global flags of one invocation, options that many commands share, and notes, prompts and spinners on stderr."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from pyarctic.cli.errors import NEGATIVE_RESULT
from pyarctic.cli.help import Commands, GroupHelp
from pyarctic.cli.view.layout import terminal_width, wrap_words
from pyarctic.errors import UsageError


@dataclass(slots=True)
class Session:
    """Global flags; set by the root command."""

    quiet: bool = False
    debug: bool = False


session = Session()


class Format(enum.StrEnum):
    """How data is written to stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    NAME = "name"


FormatOption = Annotated[Format, typer.Option("--format", help="Output format; `name` prints identifiers only.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
WideOption = Annotated[
    bool, typer.Option("--wide", help="Show all columns and full values, even if they do not fit the terminal.")
]
AbsoluteOption = Annotated[bool, typer.Option("--absolute", help="Show timestamps instead of ages.")]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="Maximum number of rows; 0 is all (default: 50 for table and markdown, else all)."),
]
SnapshotOption = Annotated[int | None, typer.Option("--snapshot", metavar="ID", help="As of this snapshot.")]
RefOption = Annotated[str | None, typer.Option("--ref", metavar="NAME", help="As of this branch or tag.")]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="catalog.database.table", show_default=False)]
TablesArgument = Annotated[
    list[str],
    typer.Argument(metavar="TABLE...", help="Names or patterns: demo.shop.orders, 'demo.*.orders*'", show_default=False),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Set properties even if their names are not known.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


class StoreName(enum.StrEnum):
    """A store of a keyed table."""

    BASE = "base"
    CHANGE = "change"


StoreOption = Annotated[StoreName, typer.Option("--store", help="Keyed tables: the base store or the change store.")]


def resolve_format(output_format: Format, as_json: bool) -> Format:
    """Combine `--format` and `--json`; `--json` with another format is an error."""
    if as_json and output_format not in (Format.TABLE, Format.JSON):
        raise UsageError(f"--json and --format {output_format} cannot be combined", hint="Choose one of them.")
    return Format.JSON if as_json else output_format


def note(text: str, *, style: str | None = None) -> None:
    """Print one line to stderr, unless `--quiet`."""
    if session.quiet:
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in wrap_words(text, terminal_width(sys.stderr)):
        console.print(Text(line, style=style or "dim"))


def confirm(what: str, *, yes: bool) -> None:
    """Continue only with `--yes` or if the user answers y or yes; without a terminal there is no prompt."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"{what}; this needs confirmation", hint="Add --yes to confirm, or --dry-run to see what would be done."
        )
    answer: str = typer.prompt(f"{what}. Continue? [y/N]", default="n", show_default=False, prompt_suffix=" ", err=True)
    if answer.strip().lower() not in ("y", "yes"):
        note("not confirmed: nothing was changed")
        raise typer.Exit(NEGATIVE_RESULT)


def shows_progress() -> bool:
    """Whether progress is shown: stderr is a terminal and progress is not switched off."""
    quiet = session.quiet or bool(os.environ.get("ARCTIC_NO_PROGRESS")) or os.environ.get("TERM") == "dumb"
    return not quiet and sys.stderr.isatty()


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Show a spinner on stderr while work is going on; does nothing without a terminal."""
    if not shows_progress():
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


# Typer's own `--help` is not a plain flag: it loads pydantic even when it is not given.
HelpOption = Annotated[
    bool, typer.Option("--help", "-h", is_eager=True, callback=_show_help, help="Show this message and exit.")
]


def _list_commands(context: typer.Context, _help: HelpOption = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def new_command_group(text: str) -> Commands:
    """Create a command group with plain help (fast, no boxes), which lists its commands when none is given."""
    return Commands(
        cls=GroupHelp,
        help=text,
        callback=_list_commands,
        invoke_without_command=True,
        rich_markup_mode=None,
        add_completion=False,
        add_help_option=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
