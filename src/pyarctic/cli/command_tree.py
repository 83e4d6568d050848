"""The tree of commands as data: what help, completion and errors need to know about commands and their parameters."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GLOBAL_OPTIONS: Mapping[str, str] = {
    "--config FILE": "Read catalogs from this file.",
    "--debug": "Show tracebacks of errors.",
    "-q, --quiet": "Do not print notes and progress to stderr.",
    "-h, --help": "Show this message and exit.",
}
"""Options that every command accepts, with their help."""
GLOBAL_NAMES = tuple(name for text in GLOBAL_OPTIONS for name in text.split(" FILE")[0].split(", "))


@dataclass(frozen=True, slots=True)
class FoundCommand:
    """The command that some words call, and the words that are left for it."""

    path: tuple[str, ...]
    command: Any
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join(("arctic", *self.path))


def find_command(root: Any, words: Sequence[str]) -> FoundCommand:
    """Follow the words down the tree as far as they name commands."""
    path: list[str] = []
    command = root
    rest = list(words)
    while rest and rest[0] in subcommands(command):
        path.append(rest.pop(0))
        command = subcommands(command)[path[-1]]
    return FoundCommand(tuple(path), command, tuple(rest))


def subcommands(command: Any) -> Mapping[str, Any]:
    """The commands of a group by name; none for a command."""
    found: Mapping[str, Any] = getattr(command, "commands", {})
    return found


def arguments_of(command: Any) -> list[Any]:
    """The positional arguments of a command."""
    return [parameter for parameter in command.params if parameter.param_type_name == "argument"]


def options_of(command: Any) -> list[Any]:
    """The options of a command, without those that every command has."""
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    return [option for option in options if not set(option.opts) & set(GLOBAL_NAMES)]


def choices_of(parameter: Any) -> list[str]:
    """The values of a parameter that has only a few."""
    annotation = parameter.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [str(choice.value) for choice in annotation]
    return []


def placeholder_of(parameter: Any) -> str:
    """What stands for the value of a parameter in help: its own text, its choices, N for numbers; nothing for flags."""
    if getattr(parameter, "is_flag", False):
        return ""
    is_number = parameter.type_descriptor.annotation in (int, float)
    return parameter.metavar or "|".join(choices_of(parameter)) or ("N" if is_number else "TEXT")


def argument_name(parameter: Any) -> str:
    """The name of an argument without the brackets and dots of its usage: `TABLE`."""
    return str(parameter.metavar or parameter.name).strip("[].")
