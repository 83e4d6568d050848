"""Command groups whose help is plain text that fits 80 columns, with the same global options under every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from pyarctic.cli.command_tree import GLOBAL_OPTIONS, arguments_of, options_of, placeholder_of

F = TypeVar("F", bound=Callable[..., Any])


class CommandHelp(TyperCommand):
    """A command with our help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return ["[OPTIONS]", *(placeholder_of(argument) for argument in arguments_of(self))]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        _write_sections(self, formatter)


class GroupHelp(TyperGroup):
    """A group of commands with our help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return ["COMMAND", "..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_sections(self, formatter)


class Commands(typer.Typer):
    """A group of commands; its commands get our help."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        return super().command(name, cls=CommandHelp, **options)


def _write_sections(command: Any, formatter: Any) -> None:
    sections = {
        "Arguments": [(placeholder_of(argument), argument.help or "") for argument in arguments_of(command)],
        "Options": [_option_record(option) for option in options_of(command)],
        "Global options": list(GLOBAL_OPTIONS.items()),
    }
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records, col_max=24)


def _option_record(option: Any) -> tuple[str, str]:
    default = getattr(option.default, "value", option.default)
    shows_default = option.show_default and isinstance(default, str | int) and not isinstance(default, bool)
    text = option.help or ""
    if shows_default:
        text = f"{text} (default: {default})" if not text.endswith(".") else f"{text[:-1]} (default: {default})."
    names = " / ".join(", ".join(sorted(each, key=len)) for each in (option.opts, option.secondary_opts) if each)
    return " ".join(filter(None, (names, placeholder_of(option)))), text
