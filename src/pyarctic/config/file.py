"""Read an `arctic.yaml`; every error is reported with file, line and key.

The YAML text is parsed to a node tree, because nodes know their lines. Plain values with `${ENV}` expanded are built from
it and validated by pydantic, and each validation error is mapped back to the line of its key.
"""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from pyarctic.config.names import catalog_name_fault
from pyarctic.config.sections import HttpSection, ServiceSection
from pyarctic.errors import ConfigError

KeyPath = tuple[int | str, ...]

_VARIABLE = re.compile(r"\$(?P<escape>\$)?\{(?P<body>[^}]*)(?P<end>\}?)")
_REFERENCE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<default>.*))?", re.DOTALL)
_NULLS = ("", "~", "null", "Null", "NULL")
FOLDER_VARIABLE = "ARCTIC_CONFIG_DIR"
"""In a file, the variable with the absolute path of the folder that contains it."""


def _check_catalog_name(name: str) -> str:
    fault = catalog_name_fault(name)
    if fault is not None:
        raise ValueError(fault)
    return name


def _empty_when_absent(value: Any) -> Any:
    # `catalogs:` with every entry commented out is common and means no catalogs.
    return {} if value is None else value


class FileContent(BaseModel):
    """The structure of the file."""

    # A traceback with `--debug` must not show secrets of the file.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    catalogs: Annotated[
        dict[Annotated[str, AfterValidator(_check_catalog_name)], dict[str, str]], BeforeValidator(_empty_when_absent)
    ] = {}
    service: Annotated[ServiceSection, BeforeValidator(_empty_when_absent)] = ServiceSection()
    http: Annotated[HttpSection, BeforeValidator(_empty_when_absent)] = HttpSection()


@dataclass(frozen=True, slots=True, order=True)
class _Problem:
    line: int
    key: str
    message: str


class _ConfigProblem(Exception):
    """An error in the YAML tree; becomes a ConfigError where the file name is known."""

    def __init__(self, line: int, key: str, message: str) -> None:
        super().__init__(message)
        self.problem = _Problem(line, key, message)


def read(path: Path) -> FileContent:
    """Read a file; raises a ConfigError with file, line and key."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text", hint="Save the file as UTF-8.", file=str(path)) from error
    except OSError as error:
        hint = f"Name a file, for example {path}/arctic.yaml." if path.is_dir() else "Check the permissions of the file."
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", hint=hint, file=str(path)) from error
    lines: dict[KeyPath, int] = {}
    try:
        variables = ChainMap({FOLDER_VARIABLE: str(path.absolute().parent)}, os.environ)
        values = _parse_yaml(text, lines, variables)
        return FileContent.model_validate({} if values is None else values)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = _Problem(mark.line + 1 if mark else 1, "", f"not valid YAML: {error.problem or error.context}")
        raise _config_error(path, [problem]) from error
    except yaml.YAMLError as error:
        raise _config_error(path, [_Problem(1, "", f"not valid YAML: {' '.join(str(error).split())}")]) from error
    except _ConfigProblem as error:
        raise _config_error(path, [error.problem]) from error
    except ValidationError as error:
        problems = [_explain_problem(details["loc"], details["type"], details["msg"], lines) for details in error.errors()]
        raise _config_error(path, sorted(problems)) from error


def _config_error(path: Path, problems: list[_Problem]) -> ConfigError:
    messages = [f"{path}:{p.line} {p.key}: {p.message}" if p.key else f"{path}:{p.line} {p.message}" for p in problems]
    facts: dict[str, Any] = {"file": str(path), "line": problems[0].line}
    if problems[0].key:
        facts["key"] = problems[0].key
    if len(messages) > 1:
        facts["also"] = "; ".join(messages[1:])
    return ConfigError(messages[0], hint=f"Correct line {problems[0].line} of the file.", **facts)


def _explain_problem(loc: KeyPath, kind: str, message: str, lines: Mapping[KeyPath, int]) -> _Problem:
    """Translate a validation error of pydantic, with the line of its key."""
    loc = loc[:-1] if loc and loc[-1] == "[key]" else loc
    line = next((lines[loc[:end]] for end in range(len(loc), -1, -1) if loc[:end] in lines), 1)
    key = ".".join(str(part) for part in loc)
    if kind == "extra_forbidden":
        known_keys = _known_keys(loc[:-1])
        near = get_close_matches(str(loc[-1]), known_keys, n=1, cutoff=0.6)
        rest = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known_keys)}"
        return _Problem(line, key, f"not a known key; {rest}")
    messages = {
        "dict_type": "must be a mapping of keys to values",
        "model_type": "must be a mapping of keys to values",
        "string_type": "must be a single value, neither a list nor a mapping",
    }
    return _Problem(line, key, messages.get(kind, message.removeprefix("Value error, ")))


def _known_keys(loc: KeyPath) -> list[str]:
    """The keys that a mapping of the file may have."""
    section: Any = FileContent
    for part in loc:
        fields = {field.alias or name: field for name, field in section.model_fields.items()}
        section = fields[str(part)].annotation
    return sorted(field.alias or name for name, field in section.model_fields.items())


def _parse_yaml(text: str, lines: dict[KeyPath, int], variables: Mapping[str, str]) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        lines[()] = root.start_mark.line + 1
        values = _node_value(loader, root, (), lines, ())
        return _expand_values(values, (), lines, variables)
    finally:
        loader.dispose()


def _node_value(
    loader: yaml.SafeLoader, node: yaml.Node, loc: KeyPath, lines: dict[KeyPath, int], ancestors: tuple[int, ...]
) -> Any:
    """Convert a node to plain Python data; scalars keep their text."""
    line = lines.get(loc, node.start_mark.line + 1)
    key = ".".join(str(part) for part in loc)
    if id(node) in ancestors:
        raise _ConfigProblem(line, key, "refers to itself")
    path = (*ancestors, id(node))
    if isinstance(node, yaml.MappingNode):
        return {
            name: _node_value(loader, value, (*loc, name), lines, path)
            for name, value in _mapping_entries(loader, node, loc, lines)
        }
    if isinstance(node, yaml.SequenceNode):
        return [_node_value(loader, item, (*loc, index), lines, path) for index, item in enumerate(node.value)]
    # Not the types of YAML, which would turn `region: no` into False and `account: 0123` into 83.
    raw = str(node.value)
    is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
    if is_plain and raw in _NULLS:
        if len(loc) > 2:
            raise _ConfigProblem(line, key, "has no value; give it one or remove the line")
        return None
    if is_plain and raw.lower() in ("true", "false"):
        return raw.lower()
    return raw


def _expand_values(value: Any, loc: KeyPath, lines: Mapping[KeyPath, int], variables: Mapping[str, str]) -> Any:
    """Expand the variables in all texts."""
    if isinstance(value, dict):
        return {name: _expand_values(part, (*loc, name), lines, variables) for name, part in value.items()}
    if isinstance(value, list):
        return [_expand_values(part, (*loc, index), lines, variables) for index, part in enumerate(value)]
    if value is None:
        return None
    line = next((lines[loc[:end]] for end in range(len(loc), -1, -1) if loc[:end] in lines), 1)
    return _expand(value, line, ".".join(str(part) for part in loc), variables)


def _mapping_entries(
    loader: yaml.SafeLoader, node: yaml.MappingNode, loc: KeyPath, lines: dict[KeyPath, int]
) -> list[tuple[str, yaml.Node]]:
    seen: dict[str, int] = {}
    for name_node, _ in node.value:
        line = name_node.start_mark.line + 1
        if not isinstance(name_node, yaml.ScalarNode):
            raise _ConfigProblem(line, ".".join(map(str, loc)), "has a key that is not plain text")
        name = str(name_node.value)
        if name in seen:
            full = ".".join(map(str, (*loc, name)))
            raise _ConfigProblem(line, full, f"given twice; first in line {seen[name]}")
        seen[name] = line
    loader.flatten_mapping(node)  # `<<: *anchor`; keys of the mapping itself come last and win
    merged = {str(name_node.value): (name_node, value) for name_node, value in node.value}
    node.value = list(merged.values())
    for name, (name_node, _) in merged.items():
        lines[(*loc, name)] = name_node.start_mark.line + 1
    return [(name, value) for name, (_, value) in merged.items()]


def _expand(text: str, line: int, key: str, variables: Mapping[str, str]) -> str:
    """Expand `${NAME}` and `${NAME:default}`; `$${` is a literal `${`."""

    def replacement(match: re.Match[str]) -> str:
        if match["escape"]:
            return match[0][1:]
        reference = _REFERENCE.fullmatch(match["body"])
        if reference is None or not match["end"]:
            raise _ConfigProblem(line, key, f"{match[0]!r} is not a variable; write ${{NAME}}, or $${{ for a literal ${{")
        value = variables.get(reference["name"], reference["default"])
        if value is None:
            name = reference["name"]
            raise _ConfigProblem(
                line, key, f"the environment variable {name} is not set; set it or write ${{{name}:default}}"
            )
        return value

    return _VARIABLE.sub(replacement, text)
