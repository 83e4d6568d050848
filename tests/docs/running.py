"""Run the blocks of a page in order, in one folder, as a reader would: Python in one interpreter, commands in one shell.

A block of `text` below a block that ran is its output. `…` stands for anything within a line, and a line of its own for any
lines.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.docs.pages import Block

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.services.s3 import Bucket

_DATA = re.compile(r"(?<![\w.}])/data/")
_VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)\}")
_SHELL_SIGNS = re.compile(r"[|<>;&`]|\$[({A-Za-z]")
_SECONDS = 120


@dataclass
class Runner:
    """Runs blocks in `folder`, which is the working directory."""

    folder: Path
    bucket: Callable[[], Bucket]
    """Makes a bucket in S3."""
    spark: SparkSession | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    shown: str | None = None
    """What the last block printed; None if it did not run."""

    def __post_init__(self) -> None:
        self.variables |= {"__name__": "__main__"} | ({"spark": self.spark} if self.spark is not None else {})

    def run(self, block: Block) -> None:
        """Run a block, or compare it with what the last one printed. Raises an AssertionError that names the block."""
        if block.reason_not_run is not None or block.comment == "illustration":
            self.shown = None
            return
        text = _DATA.sub(f"{self.folder}/data/", block.text)
        if block.file_name is not None:
            self._save(block, text)
            return
        match block.language:
            case "python":
                self.shown = self._python(block, text)
            case "bash":
                self.shown = self._commands(block, text)
            case "console":
                self._session(block, text)
            case "yaml":
                self._yaml(text)
            case "json":
                json.loads(text)
            case "sql":
                self.shown = self._sql(text)
            case "text":
                assert self.shown is not None, f"{block.place}: no block ran whose output this may be"
                expect(block, text, self.shown)
                self.shown = None
            case other:
                raise AssertionError(f"{block.place}: what is a block of {other or 'no language'}?")

    def _python(self, block: Block, text: str) -> str:
        padding = "\n" * block.line  # tracebacks show lines of the page
        out = io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(out):
            warnings.simplefilter("ignore")
            exec(compile(padding + text, block.page, "exec"), self.variables)
        return out.getvalue()

    def _commands(self, block: Block, text: str) -> str:
        lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
        if all(line.startswith("arctic ") and not _SHELL_SIGNS.search(_unquoted(line)) for line in lines):
            return "".join(self._arctic(block, shlex.split(line, comments=True)[1:]) for line in lines)
        return self._shell(block, text)

    def _arctic(self, block: Block, words: list[str]) -> str:
        from pyarctic import config
        from pyarctic.cli.app import main

        out, err = io.StringIO(), io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(out), redirect_stderr(err):
            warnings.simplefilter("ignore")
            code = main(words)
        config.use(None)  # the file of a command is not that of the next one
        assert code == block.exit_code, f"{block.place}: arctic {shlex.join(words)} ended with {code}\n{err.getvalue()}"
        return out.getvalue() if code == 0 else err.getvalue()

    def _shell(self, block: Block, text: str) -> str:
        programs = self.folder / ".programs"
        programs.mkdir(exist_ok=True)
        for name, command in {"arctic": "-m pyarctic.cli", "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
            (programs / name).chmod(0o755)
        source = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": source}
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == block.exit_code, f"{block.place} ended with {done.returncode}\n{done.stderr}"
        return done.stdout

    def _session(self, block: Block, text: str) -> None:
        """A session at a terminal: commands after `$ `, and what they print."""
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            expect(block, expected, self._commands(block, command))
        self.shown = None

    def _yaml(self, text: str) -> None:
        """A configuration file that is only shown: it must be valid."""
        from pyarctic import config

        for name in _VARIABLE.findall(text):
            os.environ.setdefault(name, "anything")
        shown = self.folder / ".shown.yaml"
        shown.write_text(text)
        config.load(shown)

    def _sql(self, text: str) -> str:
        assert self.spark is not None, "SQL needs a page for Spark"
        statements = [statement for statement in text.split(";") if statement.strip()]
        frames = [self.spark.sql(statement) for statement in statements]
        return "\n".join(str(frame.collect()) for frame in frames)

    def _save(self, block: Block, text: str) -> None:
        assert block.file_name is not None
        path = self.folder / block.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        if block.language == "python":
            compile(text, block.place, "exec")
        path.write_text(text)
        self.shown = None


def _unquoted(line: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", line.partition(" #")[0])


def expect(block: Block, expected: str, shown: str) -> None:
    """Compare what a page shows with what was printed."""
    wanted, got = _stripped(expected), _stripped(shown)
    lines = [r"(.*\n)*?" if line.strip() == "…" else f"{_pattern(line)}\n" for line in wanted.splitlines()]
    assert re.fullmatch("".join(lines), f"{got}\n" if got else ""), f"{block.place} shows\n{wanted}\nbut this is\n{got}"


def _pattern(line: str) -> str:
    texts = (re.sub(r"(\\ )+", " +", re.escape(text)) for text in line.split("…"))  # widths follow from values
    return ".*?".join(texts)


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).strip()
