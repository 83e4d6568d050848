"""Modules and functions stay small. One that must be larger carries the reason: a comment `# long: …` at its first line."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import MODULES, Module

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_BRANCHES = 15
_BRANCHES = (
    ast.Assert,
    ast.ExceptHandler,
    ast.For,
    ast.If,
    ast.IfExp,
    ast.While,
    ast.match_case,
)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_modules_and_functions_are_small(module: Module) -> None:
    assert len(module.lines) <= MAX_MODULE_LINES or has_reason(module, 1)
    large = [
        f"{function.name} (line {function.lineno}): {length(function)} lines, {branches(function)} branches"
        for function in module.functions()
        if (length(function) > MAX_FUNCTION_LINES or branches(function) > MAX_BRANCHES)
        and not has_reason(module, function.lineno)
    ]
    assert large == []


def has_reason(module: Module, line: int) -> bool:
    return "# long: " in module.lines[line - 1]


def length(function: ast.FunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def branches(function: ast.FunctionDef) -> int:
    """Ways through a function, as McCabe counts them: with `and`, `or` and the parts of comprehensions."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, _BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


def test_branches_are_counted() -> None:
    source = "def f(a):\n    if a and a > 1:\n        return [b for b in a if b]\n    return 1 if a else 2\n"
    [function] = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    assert branches(function) == 6
    assert length(function) == 4
