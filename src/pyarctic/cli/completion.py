"""Shell completion: `arctic completion SHELL` prints a script, which calls `arctic __complete -- WORD...` at every Tab.

The answer has one candidate per line, with its description after a tab; the line `:files` asks the shell for file names.
Only table names need the library; they are looked up with a time limit. Errors give no candidates.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer

from pyarctic.cli.command_tree import (
    GLOBAL_OPTIONS,
    argument_name,
    arguments_of,
    choices_of,
    find_command,
    options_of,
    subcommands,
)

HIDDEN_COMMAND = "__complete"
FILES = ":files"
CATALOG_SECONDS = 2.0
"""How long a catalog may take to list its databases and tables."""
CHANGE_STORE_ENDING = "_change_"
"""Change stores of keyed tables are not offered."""
Candidate = tuple[str, str]
"""A value and its description."""

_BASH = """\
# bash completion for arctic
_arctic() {
    local line current="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o default
        else
            COMPREPLY+=("${line%%$'\\t'*}")
        fi
    done < <(arctic __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *[.=] ]]; then
        compopt -o nospace
    fi
}
complete -F _arctic arctic
"""
_ZSH = """\
#compdef arctic
_arctic() {
    local line value
    local -a values descriptions open
    for line in "${(@f)$(arctic __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        value="${line%%$'\\t'*}"
        if [[ $line == :files ]]; then
            _files
        elif [[ $value == *[.=] ]]; then
            open+=("$value")
        elif [[ -n $value ]]; then
            values+=("$value")
            descriptions+=("${line/$'\\t'/  -- }")
        fi
    done
    (( $#open )) && compadd -S '' -- $open
    (( $#values )) && compadd -l -d descriptions -- $values
}
if [[ $funcstack[1] == _arctic ]]; then
    _arctic "$@"
else
    compdef _arctic arctic
fi
"""
_FISH = """\
# fish completion for arctic
function __arctic_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    for line in (arctic __complete -- $words "$current" 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path "$current"
        else
            echo $line
        end
    end
end
complete -c arctic -f -a "(__arctic_complete)"
"""


class Shell(enum.StrEnum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print a script for completion in a shell.

    \b
    Examples:
      arctic completion bash >> ~/.bashrc
      arctic completion zsh > "${fpath[1]}/_arctic"
      arctic completion fish > ~/.config/fish/completions/arctic.fish

    It completes commands, options, their values and table names. Start a new shell afterwards. To try it in this one:
    source <(arctic completion bash)
    """
    typer.echo(SCRIPTS[shell], nl=False)


def print_candidates(root: Any, words: Sequence[str]) -> None:
    """Print the candidates for the last of the words."""
    words = words[1:] if words[:1] == ["--"] else words
    try:
        for value, description in complete(root, list(words) or [""]):
            typer.echo(f"{value}\t{description}" if description else value)
    except Exception:  # noqa: BLE001 - an error must not disturb the line that is being typed
        return


def complete(root: Any, words: list[str]) -> Iterator[Candidate]:
    """Yield the candidates for the last word."""
    words = _use_config(_join_equals(words))
    *before, current = words
    found = find_command(root, before)
    options = {name: option for option in options_of(found.command) for name in option.opts}
    option_name, equals, value = current.partition("=")
    last = before[-1] if before else ""
    if last == "--config":
        yield FILES, ""
    elif last in options and not options[last].is_flag:
        yield from _starting_with(current, _values_of(options[last], current))
    elif equals and option_name in options:
        values = _starting_with(value, _values_of(options[option_name], value))
        yield from ((f"{option_name}={text}", help_) for text, help_ in values)
    elif current.startswith("-"):
        yield from _starting_with(current, (*_options(options), *_global_options()))
    elif subcommands(found.command):
        commands = subcommands(found.command).items()
        yield from _starting_with(current, ((name, _first_sentence(command.help)) for name, command in commands))
    else:
        yield from _starting_with(current, _argument_values(found.command, list(found.words), options, current))


def _join_equals(words: list[str]) -> list[str]:
    """Undo what bash does to `--format=json`: it passes three words."""
    return [word for index, word in enumerate(words) if word != "=" or index == len(words) - 1] if "=" in words else words


def _use_config(words: list[str]) -> list[str]:
    """Use the file of `--config FILE`, and take it out of the words."""
    for index, word in enumerate(words[:-2]):
        if word == "--config":
            from pathlib import Path

            from pyarctic.config import use

            use(Path(words[index + 1]))
            return words[:index] + words[index + 2 :]
    return ["" if word == "=" else word for word in words]


def _options(options: dict[str, Any]) -> Iterator[Candidate]:
    return ((name, option.help or "") for name, option in options.items())


def _global_options() -> Iterator[Candidate]:
    for names, text in GLOBAL_OPTIONS.items():
        yield names.removesuffix(" FILE").split(", ")[-1], text


def _argument_values(command: Any, words: list[str], options: dict[str, Any], current: str) -> Iterable[Candidate]:
    """Candidates for the argument that the current word is."""
    given = 0
    takes_value = False
    for word in words:
        is_option = word.startswith("-") and word != "-"
        given += not takes_value and not is_option
        takes_value = word in options and not options[word].is_flag
    arguments = arguments_of(command)
    if not arguments:
        return ()
    argument = arguments[min(given, len(arguments) - 1)]
    is_full = given >= len(arguments) and argument.nargs == 1
    return () if is_full else _values_of(argument, current)


def _values_of(parameter: Any, current: str) -> Iterable[Candidate]:
    """Candidates for the value of a parameter."""
    if choices := choices_of(parameter):
        return ((choice, "") for choice in choices)
    name = argument_name(parameter)
    if name in ("FILE", "FOLDER"):
        return ((FILES, ""),)
    if name in ("TABLE", "GLOB"):
        return ((text, "") for text in _within_time_limit(lambda: list(complete_table(current))))
    if name == "CATALOG":
        return ((text, "") for text in _within_time_limit(_catalogs))
    if name in ("KEY=VALUE", "KEY"):
        return _properties(ending="=" if name == "KEY=VALUE" else "")
    return ()


def _properties(ending: str) -> Iterator[Candidate]:
    from pyarctic.config.table_properties import TABLE_PROPERTIES

    for entry in TABLE_PROPERTIES:
        yield f"{entry.name}{ending}", entry.doc


def _catalogs() -> list[str]:
    from pyarctic.iceberg.catalog import catalog_names

    return catalog_names()


def complete_table(current: str) -> Iterator[str]:
    """Yield the next part of table names: catalogs, databases of a catalog, or tables of a database."""
    catalog_name, dot, rest = current.partition(".")
    if not dot:
        yield from (f"{name}." for name in _catalogs())
        return
    from pyarctic.iceberg.catalog import open_catalog

    database, dot, _ = rest.rpartition(".")
    parent = tuple(database.split(".")) if dot else ()
    catalog = open_catalog(catalog_name)
    if parent:  # not by `pyarctic.tables`, which takes a second to import
        names = {".".join((catalog_name, *identifier)) for identifier in catalog.list_tables(parent)}
        yield from sorted(name for name in names if name.removesuffix(CHANGE_STORE_ENDING) not in names - {name})
    namespaces = catalog.list_namespaces(parent) if parent else catalog.list_namespaces()
    yield from (".".join((catalog_name, *namespace)) + "." for namespace in namespaces if len(namespace) > len(parent))


def _within_time_limit(look_up: Callable[[], list[str]]) -> list[str]:
    """What was found in time; nothing after an error."""
    from pyarctic.iceberg.catalog import open_catalog  # noqa: F401  # loaded before the time starts

    found: list[str] = []

    def run() -> None:
        try:
            found.extend(look_up())
        except Exception:  # noqa: BLE001 - a catalog that fails has no candidates
            return

    # A daemon thread, because a hanging connection has no time limit of its own.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(CATALOG_SECONDS)
    return list(found)


def _starting_with(current: str, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    return ((value, text) for value, text in candidates if value.startswith(current) or value == FILES)


def _first_sentence(text: str | None) -> str:
    return (text or "").partition("\n")[0].partition(". ")[0].removesuffix(".")


def is_completion(words: Sequence[str]) -> bool:
    """Whether a shell asks for candidates."""
    return list(words[:1]) == [HIDDEN_COMMAND]
