"""Rules of the whole command line: streams, errors, exit codes, formats, speed, documentation."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from pyarctic import errors as tree
from pyarctic.cli import optimize
from pyarctic.cli.app import app, extract_global_options, wants_json
from pyarctic.cli.command_tree import GLOBAL_NAMES, find_command, options_of
from pyarctic.cli.errors import EXIT_CODES
from pyarctic.optimizing import KindChoice
from tests.support.cli_library import NAME, Arctic, Library, Table

ROOT = Path(__file__).parents[3]
HEAVY = {"pyarrow", "pyiceberg", "pyspark", "sqlalchemy", "polars", "pydantic", "rich", "numpy", "yaml"}


def all_errors(kind: type[tree.ArcticError] = tree.ArcticError) -> list[type[tree.ArcticError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in all_errors(below))]


def commands() -> list[tuple[str, Any]]:
    """Every command with the words that call it."""

    def walk(path: str, command: Any) -> list[tuple[str, Any]]:
        inner = getattr(command, "commands", {})
        below = [found for name, part in inner.items() for found in walk(f"{path} {name}".strip(), part)]
        return [(path, command), *below]

    return walk("", typer.main.get_command(app))


@pytest.mark.parametrize("words", [["--help"], [], ["version"], ["table", "--help"], ["table"], ["catalog"]])
def test_help_and_version_load_nothing_heavy(words: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "pyarctic.cli", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in ran.stderr.splitlines()}
    assert "typer" in loaded
    assert not HEAVY & loaded
    assert ran.stdout


@pytest.mark.parametrize(("path", "command"), commands())
def test_help_has_two_examples_and_fits(arctic: Arctic, path: str, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = arctic(*path.split(), "--help").out
    assert arctic(*path.split(), "-h").out == shown
    examples = shown.partition("  Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) >= 2
    assert all(line.startswith(f"    arctic {path}".rstrip()) for line in examples)
    assert max(map(len, shown.splitlines())) <= 80
    for option in ("--config FILE", "--debug", "-q, --quiet", "-h, --help"):
        assert f"\n  {option} " in shown.partition("\nGlobal options:")[2]
    assert "..." not in shown.partition("\nCommands:\n")[2]


@pytest.mark.parametrize(("path", "command"), commands())
def test_examples_are_accepted(path: str, command: Any) -> None:
    """Words and options of examples exist; table names and files are not looked up."""
    root = typer.main.get_command(app)
    for line in re.findall(r"^ *(arctic [^|<>\n]*)", command.help or "", re.MULTILINE):
        arguments, _ = extract_global_options(shlex.split(line)[1:])
        found = find_command(root, arguments)
        known = {name for option in options_of(found.command) for name in option.opts} | {*GLOBAL_NAMES}
        assert {word for word in found.words if word.startswith("--")} <= known


@pytest.mark.parametrize("noun", ["table", "catalog"])
def test_a_noun_alone_lists_its_verbs(arctic: Arctic, noun: str) -> None:
    ran = arctic(noun)
    assert (ran.code, ran.err) == (0, "")
    assert "Commands:" in ran.out
    assert arctic(noun, "--help").out == ran.out


def test_errors_have_three_parts(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "show", "demo.shop.nope")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines() == ["error[not-found]: demo.shop.nope: no such table", "  hint: arctic table ls"]
    library.failure = tree.Damaged("manifest is truncated", file="a.avro", table=NAME)
    ran = arctic("table", "ls")
    assert ran.err.splitlines() == [f"error[damaged]: {NAME}: manifest is truncated", "  file: a.avro"]


def test_errors_as_json(arctic: Arctic, library: Library) -> None:
    ran = arctic("table", "show", "demo.shop.nope", "--json")
    assert (ran.code, ran.out) == (1, "")
    problem = json.loads(ran.err)
    assert (problem["code"], problem["facts"]["table"]) == ("not-found", "demo.shop.nope")
    assert json.loads(arctic("table", "show", "--format", "json").err)["code"] == "usage"


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_has_its_exit_code(arctic: Arctic, library: Library, kind: type[tree.ArcticError]) -> None:
    library.failure = kind("no")
    assert arctic("table", "ls").code == EXIT_CODES[kind.code]


def test_the_unexpected_is_one_line(arctic: Arctic, library: Library) -> None:
    library.failure = ValueError("cannot parse\npostgresql://anna:pw@db/x")
    ran = arctic("table", "ls")
    assert ran.code == 2
    assert ran.err.splitlines() == [
        "error[internal]: ValueError: cannot parse postgresql://anna:***@db/x",
        "  hint: Run the command again with --debug, and report the traceback.",
    ]
    debugged = arctic("table", "ls", "--debug")
    assert "Traceback" in debugged.err
    assert "anna:pw" not in debugged.err


def test_interruption(arctic: Arctic, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(pattern: str | None) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "list_tables", interrupted)
    ran = arctic("table", "ls")
    assert (ran.code, ran.err) == (130, "error[interrupted]: interrupted\n")


@pytest.mark.parametrize(
    "words",
    [["tabel"], ["table", "ls", "--bogus"], ["table", "show"], ["table", "ls", "--format", "xml"], ["--config"]],
)
def test_bad_arguments_are_usage_errors(arctic: Arctic, words: list[str]) -> None:
    ran = arctic(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error[usage]: ")
    assert "  hint: " in ran.err


def test_global_options_may_stand_anywhere(arctic: Arctic, library: Library, tmp_path: Path) -> None:
    assert extract_global_options(["table", "ls", "--debug", "--config", "x", "--", "-q"]) == (
        ["--debug", "table", "ls", "--", "-q"],
        Path("x"),
    )
    assert arctic("table", "ls", "--quiet").err == ""
    assert arctic("table", "ls").err == "2 tables\n"
    (tmp_path / "mine.yaml").write_text("catalogs: {demo: {type: sql}}", encoding="utf-8")
    assert arctic("catalog", "ls", "--config", "mine.yaml", "--json").json[0]["type"] == "sql"
    assert arctic("catalog", "ls", "--config=gone.yaml").code == EXIT_CODES["config"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("table ls --json", True), ("table ls --format json", True), ("--format=json", True), ("a -- --json", False)],
)
def test_json_is_recognised_before_parsing(words: str, wanted: bool) -> None:
    assert wants_json(words.split()) is wanted


def test_narrow_terminals_get_less_and_say_so(arctic: Arctic, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    ran = arctic("table", "files", NAME)
    assert max(len(line) for line in ran.out.splitlines()) <= 50
    assert ran.out.split()[:3] == ["Partition", "Size", "File"]
    assert " ".join(ran.err.split()).startswith(
        "columns left out: Content, Records, Sequence, Format, Spec, Snapshot; --wide "
    )
    assert max(len(line) for line in ran.err.splitlines()) <= 50
    wide = arctic("table", "files", NAME, "--wide")
    assert "Snapshot" in wide.out
    assert "left out" not in wide.err
    monkeypatch.setenv("COLUMNS", "10")
    assert "dat…arquet\n" in arctic("table", "files", NAME).out


def test_markdown(arctic: Arctic, library: Library) -> None:
    library.names = ["demo.shop.a|b"]
    assert arctic("table", "ls", "--format", "markdown").out == "| Table |\n| --- |\n| demo.shop.a\\|b |\n"
    assert arctic("table", "show", NAME, "--format", "markdown").out.count("\n## ") == 3


def test_output_off_a_terminal_has_no_colour(arctic: Arctic, library: Library) -> None:
    library.catalogs = ["down"]
    ran = arctic("catalog", "check")
    assert "\x1b" not in ran.out + ran.err


def test_a_reader_that_stops_early_is_no_error() -> None:
    code = (
        "import sys; from tests.support.cli_library import Library, Table; lib = Library();"
        "lib.table = Table(files=50000);"
        "sys.modules.update({'pyarctic.tables': lib, 'pyarctic.iceberg': lib});"
        "from pyarctic.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "table", "files", NAME, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "[\n"
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 0


def test_json_is_streamed(arctic: Arctic, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written as they come: when the reading breaks off, what came before is out already."""

    def batches(_: Any) -> Any:
        yield from Table().data.to_batches(max_chunksize=1)[:1]
        raise tree.Damaged("file is truncated", file="b.parquet")

    monkeypatch.setattr("tests.support.cli_library.Scan.batches", batches)
    ran = arctic("table", "scan", NAME, "--json")
    assert ran.code == EXIT_CODES["damaged"]
    assert '"city": "Oslo"' in ran.out


def test_every_error_has_an_exit_code() -> None:
    assert {kind.code for kind in all_errors()} <= set(EXIT_CODES)


def test_kinds_are_those_of_the_library() -> None:
    """The command line names them again, because importing the library would make `--help` slow."""
    assert [kind.value for kind in optimize.Kind] == list(get_args(KindChoice))
