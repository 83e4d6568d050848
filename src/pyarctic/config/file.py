"""Read one `arctic.yaml`; everything wrong with it is told with file, line and key.

The YAML text becomes a node tree first, because nodes still know their lines; plain values with `${ENV}` expanded are
made from it, pydantic judges those, and each complaint is led back to the line of its key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from pyarctic.config.names import catalog_name_fault
from pyarctic.errors import ConfigError

Loc = tuple[int | str, ...]

_VARIABLE = re.compile(r"\$(?P<escape>\$)?\{(?P<body>[^}]*)(?P<end>\}?)")
_REFERENCE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<default>.*))?", re.DOTALL)
_NULLS = ("", "~", "null", "Null", "NULL")


def _catalog_name(name: str) -> str:
    fault = catalog_name_fault(name)
    if fault is not None:
        raise ValueError(fault)
    return name


def _empty_when_absent(value: Any) -> Any:
    # `catalogs:` with every entry commented out is a common sight and means none.
    return {} if value is None else value


class _File(BaseModel):
    """The shape of the file. Keys are added here as rooms need them."""

    # A traceback of `--debug` must not show the secrets of the file.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    catalogs: Annotated[
        dict[Annotated[str, AfterValidator(_catalog_name)], dict[str, str]], BeforeValidator(_empty_when_absent)
    ] = {}


@dataclass(frozen=True, slots=True, order=True)
class _Problem:
    line: int
    key: str
    message: str


class _Bad(Exception):
    """Collected while walking; becomes a ConfigError once the file's name is at hand."""

    def __init__(self, line: int, key: str, message: str) -> None:
        super().__init__(message)
        self.problem = _Problem(line, key, message)


def read(path: Path) -> Mapping[str, Mapping[str, str]]:
    """The catalogs of one file, or a ConfigError naming file, line and key."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text", hint="save the file as UTF-8", file=str(path)) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", file=str(path)) from error
    lines: dict[Loc, int] = {}
    try:
        plain = _plain(text, lines)
        return _File.model_validate({} if plain is None else plain).catalogs
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = _Problem(mark.line + 1 if mark else 1, "", f"not valid YAML: {error.problem or error.context}")
        raise _config_error(path, [problem]) from error
    except yaml.YAMLError as error:
        raise _config_error(path, [_Problem(1, "", f"not valid YAML: {' '.join(str(error).split())}")]) from error
    except _Bad as error:
        raise _config_error(path, [error.problem]) from error
    except ValidationError as error:
        found = [_explained(details["loc"], details["type"], details["msg"], lines) for details in error.errors()]
        raise _config_error(path, sorted(found)) from error


def _config_error(path: Path, problems: list[_Problem]) -> ConfigError:
    told = [f"{path}:{p.line} {p.key}: {p.message}" if p.key else f"{path}:{p.line} {p.message}" for p in problems]
    facts: dict[str, Any] = {"file": str(path), "line": problems[0].line}
    if problems[0].key:
        facts["key"] = problems[0].key
    if len(told) > 1:
        facts["also"] = "; ".join(told[1:])
    return ConfigError(told[0], **facts)


def _explained(loc: Loc, kind: str, message: str, lines: Mapping[Loc, int]) -> _Problem:
    """One complaint of pydantic in our words, at the line of the key it is about."""
    loc = loc[:-1] if loc and loc[-1] == "[key]" else loc
    line = next((lines[loc[:end]] for end in range(len(loc), -1, -1) if loc[:end] in lines), 1)
    key = ".".join(str(part) for part in loc)
    if kind == "extra_forbidden":
        known = sorted(_File.model_fields)
        near = get_close_matches(str(loc[-1]), known, n=1, cutoff=0.6)
        rest = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return _Problem(line, key, f"not a known key; {rest}")
    ours = {
        "dict_type": "must be a mapping of keys to values",
        "model_type": "must be a mapping of keys to values",
        "string_type": "must be a single value, neither a list nor a mapping",
    }
    return _Problem(line, key, ours.get(kind, message.removeprefix("Value error, ")))


def _plain(text: str, lines: dict[Loc, int]) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        lines[()] = root.start_mark.line + 1
        return _value(loader, root, (), lines, ())
    finally:
        loader.dispose()


def _value(loader: yaml.SafeLoader, node: yaml.Node, loc: Loc, lines: dict[Loc, int], above: tuple[int, ...]) -> Any:
    """A node as plain Python data; scalars keep the text that was written."""
    line = lines.get(loc, node.start_mark.line + 1)
    key = ".".join(str(part) for part in loc)
    if id(node) in above:
        raise _Bad(line, key, "refers to itself")
    inner = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        return {
            name: _value(loader, value, (*loc, name), lines, inner) for name, value in _entries(loader, node, loc, lines)
        }
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*loc, place), lines, inner) for place, item in enumerate(node.value)]
    # Not YAML's own typing: it would turn `region: no` into False and `account: 0123` into 83.
    raw = str(node.value)
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    if plain and raw in _NULLS:
        if len(loc) > 2:
            raise _Bad(line, key, "has no value; give it one or remove the line")
        return None
    if plain and raw.lower() in ("true", "false"):
        return raw.lower()
    return _expand(raw, line, key)


def _entries(
    loader: yaml.SafeLoader, node: yaml.MappingNode, loc: Loc, lines: dict[Loc, int]
) -> list[tuple[str, yaml.Node]]:
    seen: dict[str, int] = {}
    for name_node, _ in node.value:
        line = name_node.start_mark.line + 1
        if not isinstance(name_node, yaml.ScalarNode):
            raise _Bad(line, ".".join(map(str, loc)), "has a key that is not plain text")
        name = str(name_node.value)
        if name in seen:
            full = ".".join(map(str, (*loc, name)))
            raise _Bad(line, full, f"given twice; first in line {seen[name]}")
        seen[name] = line
    loader.flatten_mapping(node)  # `<<: *anchor`; own keys come last and win
    merged = {str(name_node.value): (name_node, value) for name_node, value in node.value}
    node.value = list(merged.values())
    for name, (name_node, _) in merged.items():
        lines[(*loc, name)] = name_node.start_mark.line + 1
    return [(name, value) for name, (_, value) in merged.items()]


def _expand(text: str, line: int, key: str) -> str:
    """`${NAME}` and `${NAME:default}` from the environment; `$${` stands for a literal `${`."""

    def replaced(match: re.Match[str]) -> str:
        if match["escape"]:
            return match[0][1:]
        reference = _REFERENCE.fullmatch(match["body"])
        if reference is None or not match["end"]:
            raise _Bad(line, key, f"{match[0]!r} is not a variable; write ${{NAME}}, or $${{ for a literal ${{")
        value = os.environ.get(reference["name"], reference["default"])
        if value is None:
            name = reference["name"]
            raise _Bad(line, key, f"the environment variable {name} is not set; set it or write ${{{name}:default}}")
        return value

    return _VARIABLE.sub(replaced, text)
