"""What is not installed by default: a call that needs it says in one line what to install."""

from __future__ import annotations

import sys

import pytest

from pyarctic.errors import MissingExtra
from pyarctic.spark import find_java


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let imports of these packages fail, as if they were not installed."""
    for loaded in [name for name in sys.modules if name.partition(".")[0] in names]:
        monkeypatch.delitem(sys.modules, loaded)

    class Hidden:
        @staticmethod
        def find_spec(name: str, _path: object = None, _target: object = None) -> None:
            if name.partition(".")[0] in names:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Hidden, *sys.meta_path])


def test_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarctic.spark

    hide(monkeypatch, "pyspark", "py4j")
    with pytest.raises(MissingExtra, match=r"^pyspark is not installed: pip install 'pyarctic\[spark\]'$"):
        pyarctic.spark.session()
    assert find_java is not None  # needs no Spark


@pytest.mark.parametrize(
    ("package", "properties", "command"),
    [
        ("boto3", {"type": "glue"}, "pip install 'pyarctic[glue]'"),
        ("thrift", {"type": "hive", "uri": "thrift://127.0.0.1:1"}, "pip install 'pyarctic[hive]'"),
        ("psycopg", {"type": "sql", "uri": "postgresql+psycopg://127.0.0.1:1/x"}, "pip install 'pyarctic[postgres]'"),
        ("psycopg2", {"type": "sql", "uri": "postgresql+psycopg2://127.0.0.1:1/x"}, "Write postgresql+psycopg://"),
    ],
)
def test_catalogs(monkeypatch: pytest.MonkeyPatch, package: str, properties: dict[str, str], command: str) -> None:
    import pyarctic

    for loaded in ("pyiceberg.catalog.glue", "pyiceberg.catalog.hive"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    hide(monkeypatch, package)
    with pytest.raises(MissingExtra) as caught:
        pyarctic.catalog("other", **properties)
    assert package in str(caught.value)
    assert command in f"{caught.value} {caught.value.hint}"
