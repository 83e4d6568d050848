"""Errors tell what to do next, also in tracebacks."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest

from pyarctic.errors import ArcticError, MissingExtra, NotFound, UsageError, about, import_extra


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_tracebacks_show_hint_and_facts_once() -> None:
    error = NotFound("no such column: amuont", hint="Did you mean 'amount'?", column="amuont", snapshot_id=7)
    shown = told(error).splitlines()
    assert shown[-2:] == ["snapshot id: 7", "hint: Did you mean 'amount'?"]
    assert sum("amuont" in line for line in shown) == 1, "facts of the message are not repeated"


def test_facts_that_are_added_on_the_way_are_shown_too() -> None:
    with pytest.raises(UsageError) as caught, about(table="a.b.c", file="x.parquet"), about(table="inner", file="y.parquet"):
        raise UsageError("it failed")
    shown = told(caught.value)
    assert shown.count("y.parquet") == shown.count("inner") == 1
    assert "x.parquet" not in shown
    assert caught.value.facts == {"table": "inner", "file": "y.parquet"}


def test_errors_without_hint_have_no_notes() -> None:
    assert not hasattr(ArcticError("plain"), "__notes__")


def test_errors_can_be_sent_to_other_processes() -> None:
    error = pickle.loads(pickle.dumps(UsageError("wrong", hint="Do it right.", column="id")))
    assert (str(error), error.hint, error.facts) == ("wrong", "Do it right.", {"column": "id"})
    assert told(error).count("hint: Do it right.") == 1


def test_a_module_that_is_not_installed() -> None:
    with pytest.raises(MissingExtra, match=r"^pyarctic_no_such is not installed: pip install 'pyarctic\[some\]'") as caught:
        import_extra("pyarctic_no_such.inner", "some")
    assert caught.value.code == "missing-extra"
    assert import_extra("json", "some").dumps([]) == "[]"


def test_a_module_that_lacks_another_is_not_missing_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyarctic_half_there.py").write_text("import pyarctic_not_there", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="pyarctic_not_there"):
        import_extra("pyarctic_half_there", "some")
