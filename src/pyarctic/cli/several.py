"""Commands on several tables: names and patterns, one table after the other; what fails does not stop the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import typer

from pyarctic.cli.errors import NEGATIVE_RESULT, print_problem, to_problem
from pyarctic.cli.session import note, session, spinner
from pyarctic.errors import NotFound
from pyarctic.units import format_quantity

T = TypeVar("T")
PATTERN_HINT = "Patterns match the full name: 'demo.*', '*.orders'. `arctic table ls` lists all tables."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[T]):
    """The result for one table, or what went wrong."""

    table: str
    result: T | None = None
    problem: dict[str, Any] | None = None
    """The error in the form of `ArcticError.to_dict()`."""

    def to_dict(self, convert: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
        """The document of `--json`."""
        return {"table": self.table, "error": self.problem} if self.result is None else convert(self.result)


def is_pattern(text: str) -> bool:
    """Whether a word is a pattern rather than the name of a table."""
    return any(letter in text for letter in "*?[")


def is_several(words: Sequence[str]) -> bool:
    """Whether words may mean several tables: they are more than one, or a pattern."""
    return len(words) > 1 or any(map(is_pattern, words))


def resolve_names(words: Sequence[str]) -> dict[str, Exception | None]:
    """The names of tables for names and patterns, each once; catalogs that cannot be listed with their errors. A pattern
    that matches nothing is an error."""
    from pyarctic.tables import find_tables

    names: dict[str, Exception | None] = {}
    for word in words:
        if not is_pattern(word):
            names[word] = None
            continue
        with spinner(f"listing {word}"):
            found = find_tables(word)
        if not found.names and not found.failures:
            raise NotFound(f"no table matches {word!r}", hint=PATTERN_HINT, pattern=word)
        names.update(found.failures)
        names.update(dict.fromkeys(found.names))
    return names


def run_each(names: Mapping[str, Exception | None], act: Callable[[str, str], T], *, as_json: bool) -> list[Outcome[T]]:
    """Call `act` with each name that has no error yet, and a label for its progress. An error becomes the outcome of its
    table; it is printed, unless it will be part of a JSON document."""
    outcomes: list[Outcome[T]] = []
    for number, (name, failure) in enumerate(names.items(), 1):
        label = f"{name} ({number} of {len(names)})" if len(names) > 1 else name
        try:
            if failure is not None:
                raise failure
            outcomes.append(Outcome(table=name, result=act(name, label)))
        except KeyboardInterrupt:
            note(f"interrupted at {label}")
            raise
        except Exception as error:  # noqa: BLE001 - an error of one table does not stop the others
            problem = to_problem(error)
            outcomes.append(Outcome(table=name, problem=problem))
            if not as_json:
                print_problem(problem, as_json=False, error=error if session.debug else None)
    return outcomes


def exit_on_failure(outcomes: Sequence[Outcome[T]], failed: Callable[[T], bool] = lambda _: False) -> None:
    """Exit with code 1 if an outcome is an error or has failed."""
    count = sum(outcome.result is None or failed(outcome.result) for outcome in outcomes)
    if count:
        note(f"{count} of {format_quantity(len(outcomes), 'table')} failed")
        raise typer.Exit(NEGATIVE_RESULT)
