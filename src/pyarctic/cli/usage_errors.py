"""Errors of the argument parser in our words: what is wrong, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pyarctic.cli.command_tree import (
    GLOBAL_NAMES,
    FoundCommand,
    argument_name,
    choices_of,
    find_command,
    options_of,
    placeholder_of,
    subcommands,
)

_QUOTED = re.compile(r"'(?P<name>[^']+)'")
_LIMITS = {"greater than or equal to": "at least", "less than or equal to": "at most"}


def explain_usage_error(error: Any, root: Any, words: Sequence[str]) -> tuple[str, str]:
    """The message and the hint for an exception of the parser."""
    found = find_command(root, words)
    kind = type(error).__name__
    text = str(error.format_message())
    if kind == "NoSuchOption":
        return _no_such_option(error.option_name, found)
    if text.startswith("No such command"):
        return _no_such_command(found)
    if kind == "MissingParameter":
        return f"{argument_name(error.param)} is missing", _usage_hint(found)
    if text.startswith("Got unexpected extra argument"):
        extra = text[text.rindex("(") + 1 : -1]
        return f"too many arguments: {extra}", f"{_usage_hint(found)}. Quote values that contain spaces."
    if kind == "BadOptionUsage":
        return _bad_use(text, found)
    if kind == "BadParameter" and error.param is not None:
        return _bad_value(error.param, text, words if error.param.param_type_name == "option" else found.words)
    return text, _help_hint(found)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A question with the closest name and a blank, or nothing."""
    similar = get_close_matches(name, known, n=1)
    return f"Did you mean {similar[0]}? " if similar else ""


def _no_such_command(found: FoundCommand) -> tuple[str, str]:
    name = found.words[0] if found.words else ""
    meant = _commands_elsewhere(found, name)  # the same word in a group below is more likely than a similar one here
    meant += [f"{found.name} {similar}" for similar in get_close_matches(name, list(subcommands(found.command)), n=1)]
    question = f"Did you mean `{meant[0]}`? " if meant else ""
    return f"no such command: {found.name} {name}", f"{question}`{found.name} --help` lists the commands."


def _commands_elsewhere(found: FoundCommand, name: str) -> list[str]:
    """Commands of that name in the groups below: `arctic show` is `arctic table show`."""
    groups = subcommands(found.command)
    return [f"{found.name} {group} {name}" for group in groups if name in subcommands(groups[group])]


def _no_such_option(name: str, found: FoundCommand) -> tuple[str, str]:
    known = [option for parameter in options_of(found.command) for option in parameter.opts]
    question = did_you_mean(name, [*known, *GLOBAL_NAMES])
    return f"`{found.name}` has no option {name}", f"{question}{_help_hint(found)}"


def _bad_use(text: str, found: FoundCommand) -> tuple[str, str]:
    """A flag with a value, or an option without one."""
    match = _QUOTED.search(text)
    name = match["name"] if match else ""
    option = next((each for each in options_of(found.command) if name in each.opts), None)
    if "does not take a value" in text:
        return f"{name} takes no value", f"Write {name} alone."
    if option is None:
        return text, _help_hint(found)
    return f"{name} needs a value", f"Write {name} {placeholder_of(option)}."


def _bad_value(parameter: Any, text: str, words: Sequence[str]) -> tuple[str, str]:
    name = next((option for option in parameter.opts if option.startswith("--")), argument_name(parameter))
    value = _value_of(parameter, words)
    choices = choices_of(parameter)
    if choices:
        return f"{name} cannot be {value!r}", f"{did_you_mean(value, choices)}One of: {', '.join(choices)}."
    for phrase, limit in _LIMITS.items():
        if phrase in text:
            number = text.rpartition(" ")[2]
            return f"{name} must be {limit} {number}, not {value}", f"Write it as: {name} {number}."
    kind = "a whole number" if parameter.type_descriptor.annotation is int else "a number"
    if "valid integer" in text or "valid number" in text:
        is_snapshot = parameter.metavar in ("ID", "SNAPSHOT")
        hint = "`arctic table snapshots TABLE` lists the snapshots." if is_snapshot else f"Write it as: {name} 10."
        return f"{name} must be {kind}, not {value!r}", hint
    return text.replace(": Value error, ", ": "), f"Correct {name}."


def _value_of(parameter: Any, words: Sequence[str]) -> str:
    """The value that was given for an option, or for the first argument; the parser does not tell it."""
    if parameter.param_type_name == "argument":
        return next((word for word in words if not word.startswith("-")), "")
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in parameter.opts:
            return value if equals else words[index + 1] if index + 1 < len(words) else ""
    return ""


def _usage_hint(found: FoundCommand) -> str:
    return f"Write it as: {' '.join((found.name, *found.command.collect_usage_pieces(None)))}"


def _help_hint(found: FoundCommand) -> str:
    return f"`{found.name} --help` lists the options."
