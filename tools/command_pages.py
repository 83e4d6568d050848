"""The commands of `arctic` as Markdown, from the tree of commands itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from pyarctic.cli.app import app

_COMMON = ("--help", "--format", "--json", "--wide", "--absolute", "--limit", "--snapshot", "--ref")
"""Options that the page explains once."""
NEEDS_SERVICE = "not run: it needs a service"
_TESTS = {
    "arctic init": "from nothing",
    "arctic completion": "not run: it installs scripts for three shells",
    "arctic table create": "from files",
    "arctic table rollback": "from optimized",
    "arctic table pause": NEEDS_SERVICE,
    "arctic table resume": NEEDS_SERVICE,
    "arctic serve": "not run: it runs until it is stopped",
    "arctic dev": "not run: it runs until it is stopped",
    "arctic process": NEEDS_SERVICE,
    "arctic db": NEEDS_SERVICE,
    "arctic task": NEEDS_SERVICE,
    "arctic optimizer": NEEDS_SERVICE,
    "arctic events": NEEDS_SERVICE,
}
"""How the tests run the examples of a command or a group (tests/docs/pages.py), if not like all others."""
_DEFAULT = re.compile(r"\s*\[(?:default: (?P<default>[^\]]*)|required|[^\]]*[<>]=?[^\]]*)\]")


def commands() -> str:
    """A section for each command."""
    return "\n\n".join(_section(path, command) for path, command in _tree("arctic", typer.main.get_command(app)))


def _tree(path: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _tree(f"{path} {name}", command)
        else:
            yield f"{path} {name}", command


def _section(path: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    own = [each for each in options if not set(each.opts) & set(_COMMON)]
    common = [f"`{name}`" for each in options for name in each.opts if name in _COMMON and name != "--help"]
    usage = " ".join([path, *("[OPTIONS]" for _ in options[:1]), *map(_argument_name, arguments)])
    rows = [_row(command, each) for each in (*arguments, *own)]
    parts = [f"### `{path}`", _text(command.help or "", usage, _TESTS.get(path, _TESTS.get(path.rpartition(" ")[0])))]
    if rows:
        parts.append("\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows]))
    if common:
        parts.append(f"Also: {', '.join(common)}.")
    return "\n\n".join(parts)


def _argument_name(argument: Any) -> str:
    name: str = argument.metavar or argument.name.upper()
    return name + ("…" if argument.nargs == -1 and not name.rstrip("]").endswith(("...", "…")) else "")


def _row(command: Any, parameter: Any) -> str:
    context = typer.Context(command)
    names, text = parameter.get_help_record(context)
    default = next((match["default"] for match in _DEFAULT.finditer(text) if match["default"]), "")
    required = "required" if "[required]" in text else ""
    name = _argument_name(parameter) if parameter.param_type_name == "argument" else names
    cells = (_code(name), _DEFAULT.sub("", text).strip().rstrip("."), _code(default) if default else required)
    return "| " + " | ".join(cells) + " |"


def _code(text: str) -> str:
    """Code in a cell. A bar would end the cell, and writers of sites disagree on how to escape it within backticks."""
    text = re.sub(r"<(\w[\w|-]*)>", r"\1", text)
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _text(text: str, usage: str, test: str | None) -> str:
    """The help of a command: its first sentence, how it is called, the rest, and examples as code."""
    paragraphs = [part.strip("\n") for part in re.split(r"\n\s*\n", text.replace("\b\n", ""))]
    first, *rest = (part for part in paragraphs if part.strip())
    shown = [" ".join(first.split()), f"Usage: `{usage}`"]
    for part in rest:
        if re.match(r"\s*Examples?:", part):
            lines = [line.strip() for line in part.splitlines()[1:]]
            shown += [f"<!-- test: {test} -->"] if test else []
            shown.append("\n".join(["```bash", *lines, "```"]))
        else:
            shown.append(" ".join(part.split()))
    return "\n\n".join(shown)
