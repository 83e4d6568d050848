"""Write the parts of docs/reference that follow from the code: `python -m tools.reference`.

A page has such a part between `<!-- generated: NAME -->` and `<!-- end -->`; the rest of it is written by hand. A test fails
if a part differs from what the code says (tests/docs/test_reference.py).
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pyarctic.ams.states import MACHINES
from pyarctic.cli.errors import EXIT_CODES
from pyarctic.config.file import FileContent
from pyarctic.config.sections import Section
from pyarctic.config.table_properties import TABLE_PROPERTIES
from pyarctic.errors import ArcticError
from pyarctic.server import openapi_text
from tools.command_pages import commands

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "pyarctic"
FOLDER = ROOT / "docs" / "reference"
OPENAPI = ROOT / "docs" / "openapi.json"
"""The description of the HTTP interface."""
_PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

CONFIGURATION_KEYS: Mapping[str, str] = {
    "catalogs": "catalogs by name; a name contains no dots and no spaces",
    "service.database.url": "`sqlite:///FILE`, `postgresql://…` or `mariadb://…`; default: `arctic.db` in the state folder",
    "service.tables.include": "globs of the full names of tables that are watched",
    "service.tables.exclude": "globs of those that are not",
    "service.refresh-tables.interval": "how often a table is looked at, at first",
    "service.refresh-tables.min-interval": "how often at most: the interval is halved when a table has changed",
    "service.refresh-tables.max-interval": "how often at least: it grows by half when a table has not changed",
    "service.refresh-tables.discover-interval": "how often catalogs are asked for new tables",
    "service.refresh-tables.threads": "how many tables are looked at at the same time, at least 2; of one catalog one less",
    "service.planning.min-plan-interval": "the least time between two plans of a table that its own looks lead to",
    "service.optimizer.heart-beat-timeout": "an optimizer that is silent for so long, and for three heartbeats, is lost",
    "service.optimizer.task-ack-timeout": "a task that was not acknowledged for so long goes to another optimizer",
    "service.optimizer.task-execute-timeout": "an attempt that takes longer has failed",
    "service.optimizer.task-progress-timeout": "an attempt without progress for so long has failed",
    "service.retry.scan": "how often time-outs and retries are looked for",
    "service.retry.interval": "how long a failed task waits for its next attempt",
    "service.retry.max": "how often a failed task is tried again",
    "service.commit.interval": "the least time between two commits of a table without `self-optimizing.commit-interval`",
    "service.commit.threads": "how many tables are committed to at the same time, at least 2; of one catalog one less",
    "service.history.keep": "how long processes, tasks, commits and events are kept",
    "http.host": "the address that the service listens on",
    "http.port": "its port",
    "http.auth": "`token`: every request needs one; `none`: on loopback only",
    "http.token": "the token of the administrator, of 16 characters or more; by default the service makes one",
    "http.advertised-url": "where others reach this service, if not at host and port",
}
"""What each key of arctic.yaml is for."""

VARIABLES: Mapping[str, str] = {
    "ARCTIC_CONFIG": "the configuration file; it must exist",
    "ARCTIC_URL": "the URL of the service, or several with commas between them",
    "ARCTIC_TOKEN": "the token for the service",
    "ARCTIC_STATE": "the folder of the service's database and token. Default: `arctic` in `XDG_DATA_HOME`",
    "ARCTIC_CACHE": "the folder for caches. Default: `arctic` in `XDG_CACHE_HOME`",
    "ARCTIC_SPILL_DIR": "the folder for rows that do not fit into memory while they are sorted or merged. Default: the"
    " first folder of `SPARK_LOCAL_DIRS`, else the folder for temporary files",
    "ARCTIC_NO_PROGRESS": "any value: show no progress",
    "NO_COLOR": "any value: no colors",
    "TERM": "`dumb`: no colors and no progress",
    "COLUMNS": "the width of tables on the command line. Default: that of the terminal",
    "XDG_CONFIG_HOME": "the folder of `arctic/arctic.yaml`, if no other configuration is found. Default: `~/.config`",
    "XDG_DATA_HOME": "the folder of the state folder of the service. Default: `~/.local/share`",
    "XDG_CACHE_HOME": "the folder of the folder for caches. Default: `~/.cache`",
    "AWS_ACCESS_KEY_ID": "the key for S3, if the catalog has none",
    "AWS_SECRET_ACCESS_KEY": "the secret for S3, if the catalog has none",
    "AWS_SESSION_TOKEN": "the session token for S3, if the catalog has none",
    "JAVA_HOME": "the Java that Spark runs on. Without it, PyArctic looks for Java 17 or 21",
    "PYSPARK_PYTHON": "the Python of Spark's workers. Default: the Python of the driver",
    "SPARK_LOCAL_IP": "the address that a local Spark session listens on. Default: 127.0.0.1",
    "SPARK_LOCAL_DIRS": "set by Spark on executors, see `ARCTIC_SPILL_DIR`",
}
"""What each environment variable is for."""

_INNER = {"POLARS_MAX_THREADS", "PYSPARK_GATEWAY_PORT"}
"""Variables that PyArctic or Spark set for their own processes."""
_BY_LIBRARIES = {"NO_COLOR"}
"""Variables that libraries read for us."""


def main() -> int:
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (new := generated(text)) != text:
            path.write_text(new, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)} is new\n")
    described = openapi_text()
    if not OPENAPI.exists() or OPENAPI.read_text(encoding="utf-8") != described:
        OPENAPI.write_text(described, encoding="utf-8")
        sys.stdout.write(f"{OPENAPI.relative_to(ROOT)} is new\n")
    return 0


def generated(text: str) -> str:
    """A page with its generated parts as the code is now."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match['name']]().strip()}\n\n{match[3]}"

    return _PART.sub(part, text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(head), *(tuple(row) for row in rows)]
    texts = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(lines[0]), *texts[1:]])


def configuration() -> str:
    defaults = dict(_defaults("", FileContent))
    _refuse_difference("keys of arctic.yaml", set(defaults), set(CONFIGURATION_KEYS))
    return table(
        ("key", "default", "meaning"), ((f"`{key}`", text, CONFIGURATION_KEYS[key]) for key, text in defaults.items())
    )


def _defaults(prefix: str, section: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The keys of the file and their defaults, as they are written in it."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _defaults(f"{key}.", kind)
            continue
        value = field.get_default(call_default_factory=True)
        yield key, f"`{_as_written(value)}`" if value not in (None, (), {}) else ""


def _as_written(value: object) -> str:
    if isinstance(value, timedelta):
        seconds = int(value.total_seconds())
        unit = next(unit for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)) if seconds % size == 0)
        return f"{seconds // {'d': 86400, 'h': 3600, 'min': 60, 's': 1}[unit]}{unit}"
    return json.dumps(list(value)) if isinstance(value, tuple) else str(value)


def environment() -> str:
    used = {name for path in SOURCES.rglob("*.py") for name in variables_of(path)} - _INNER
    _refuse_difference("environment variables", used | _BY_LIBRARIES, set(VARIABLES))
    return table(("variable", "meaning"), ((f"`{name}`", text) for name, text in VARIABLES.items()))


def variables_of(path: Path) -> Iterator[str]:
    """The environment variables that a module reads: constants in calls and comparisons with `os.environ`."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source if "environ" in source or "_xdg(" in source else "")
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Compare | ast.ListComp) else ""
        if "os.environ" in text or text.startswith("_xdg("):
            constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            yield from (value for value in constants if isinstance(value, str) and re.fullmatch("[A-Z]+(_[A-Z]+)*", value))


def table_properties() -> str:
    rows = [
        (
            f"`{entry.name}`",
            ", ".join(f"`{name}`" for name in entry.aliases),
            entry.default_text,
            entry.allowed,
            entry.doc.rstrip("."),
        )
        for entry in TABLE_PROPERTIES
    ]
    return table(("property", "alias", "default", "allowed", "meaning"), rows)


def errors() -> str:
    rows = [
        (
            f"[`{kind.code}`](#{kind.code})",
            f"`{kind.__name__}`",
            "yes" if kind.retryable else "no",
            str(EXIT_CODES[kind.code]),
            (kind.__doc__ or "").splitlines()[0].rstrip("."),
        )
        for kind in _error_classes(ArcticError)
    ]
    return table(("code", "exception", "retryable", "exit code", "meaning"), rows)


def _error_classes(base: type[ArcticError]) -> Iterator[type[ArcticError]]:
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == "pyarctic.errors":
            yield from _error_classes(kind)


def states() -> str:
    """Every machine of the service: what its states mean, and the moves between them."""
    parts = []
    for machine in MACHINES:
        meanings = table(("state", "meaning"), ((f"`{state}`", text) for state, text in machine.states.items()))
        diagram = f"<!-- test: illustration -->\n\n```mermaid\n{machine.to_mermaid()}\n```"
        parts.append(f"## {machine.name.capitalize()}\n\n{meanings}\n\n{diagram}")
    return "\n\n".join(parts)


def exit_codes() -> str:
    meanings = {
        0: "success",
        1: "the result is negative: object not found, file damaged, check or task failed",
        2: "the command cannot run: invalid arguments or configuration, an internal error",
        3: "a service cannot be reached, or the outcome of a commit is unknown; a retry may help",
        4: "refused: conflicts with the current state",
        130: "interrupted (Ctrl-C)",
        143: "terminated (SIGTERM), after cleaning up",
    }
    _refuse_difference("exit codes", {0, *EXIT_CODES.values()}, set(meanings))
    rows = [
        (str(code), text, ", ".join(f"[`{name}`](errors.md#{name})" for name, value in EXIT_CODES.items() if value == code))
        for code, text in meanings.items()
    ]
    return table(("code", "meaning", "errors"), rows)


def _refuse_difference(what: str, used: set[Any], described: set[Any]) -> None:
    if used != described:
        missing, gone = sorted(used - described), sorted(described - used)
        raise ValueError(f"{what} in tools/reference.py: not described {missing}, not in the code {gone}")


PARTS: Mapping[str, Callable[[], str]] = {
    "commands": commands,
    "configuration": configuration,
    "environment": environment,
    "errors": errors,
    "exit-codes": exit_codes,
    "states": states,
    "table-properties": table_properties,
}

if __name__ == "__main__":
    sys.exit(main())
