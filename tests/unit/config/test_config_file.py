"""`arctic.yaml`: what it may say, and how its faults are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyarctic import config
from pyarctic.errors import ConfigError

WriteConfig = Callable[[str], Path]


def test_values_become_the_text_that_was_written(write_config: WriteConfig) -> None:
    path = write_config(
        "catalogs:\n"
        "  demo: {type: sql, port: 8080, ratio: 1.50, on: True, off: false, region: no, account: 0123, q: 'true'}\n"
    )
    loaded = config.load()
    assert loaded.source == path
    assert loaded.catalogs["demo"] == {
        "type": "sql",
        "port": "8080",
        "ratio": "1.50",
        "on": "true",
        "off": "false",
        "region": "no",
        "account": "0123",
        "q": "true",
    }


def test_a_loaded_config_cannot_be_changed(write_config: WriteConfig) -> None:
    write_config("catalogs: {demo: {type: sql}}")
    loaded = config.load()
    with pytest.raises(TypeError):
        loaded.catalogs["demo"]["type"] = "rest"  # type: ignore[index]


def test_variables_are_expanded(write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET", "lake")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("NOWHERE", raising=False)
    write_config(
        "catalogs:\n"
        "  demo:\n"
        '    warehouse: "s3://${BUCKET}/${NOWHERE:a:b}/x"\n'
        '    empty: "[${EMPTY:unused}${NOWHERE:}]"\n'
        '    literal: "$${BUCKET} $BUCKET"\n'
    )
    assert config.load().catalogs["demo"] == {
        "warehouse": "s3://lake/a:b/x",
        "empty": "[]",
        "literal": "${BUCKET} $BUCKET",
    }


def test_a_file_knows_its_folder(write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_config("catalogs: {demo: {warehouse: 'file://${ARCTIC_CONFIG_DIR}/lake'}}")
    monkeypatch.setenv("ARCTIC_CONFIG_DIR", "/elsewhere")
    monkeypatch.chdir("/")
    assert config.load(path).catalogs["demo"] == {"warehouse": f"file://{path.parent}/lake"}


def test_anchors_and_merges_work(write_config: WriteConfig) -> None:
    write_config("catalogs:\n  a: &common {type: sql, uri: one}\n  b: {<<: *common, uri: two}\n  c: *common\n")
    loaded = config.load().catalogs
    assert loaded["b"] == {"type": "sql", "uri": "two"}
    assert loaded["c"] == loaded["a"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "catalogs:\n", "catalogs: {}\n", "{}"])
def test_an_empty_file_declares_nothing(write_config: WriteConfig, text: str) -> None:
    write_config(text)
    assert dict(config.load().catalogs) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n# c\n\ncatalgos:\n  a: {}\n", "arctic.yaml:4 catalgos: not a known key; did you mean 'catalogs'?"),
        ("servers: {}\n", "arctic.yaml:1 servers: not a known key; did you mean 'service'?"),
        ("catalogs:\n  a: {}\n\n  a: {}\n", "arctic.yaml:4 catalogs.a: given twice; first in line 2"),
        ("catalogs:\n  a: {u: 1,\n u: 2}\n", "arctic.yaml:3 catalogs.a.u: given twice; first in line 2"),
        ("- 1\n", "arctic.yaml:1 must be a mapping of keys to values"),
        ("catalogs:\n  - a\n", "arctic.yaml:1 catalogs: must be a mapping of keys to values"),
        ("catalogs:\n  a: sql\n", "arctic.yaml:2 catalogs.a: must be a mapping of keys to values"),
        ("catalogs:\n  a:\n", "arctic.yaml:2 catalogs.a: must be a mapping of keys to values"),
        (
            "catalogs:\n  a:\n    uri: [x]\n",
            "arctic.yaml:3 catalogs.a.uri: must be a single value, neither a list nor a mapping",
        ),
        ("catalogs:\n  a:\n    uri:\n", "arctic.yaml:3 catalogs.a.uri: has no value; give it one or remove the line"),
        ("catalogs:\n  a.b: {}\n", "arctic.yaml:2 catalogs.a.b: a catalog name cannot contain dots or spaces"),
        ("catalogs:\n  ? [a]\n  : {}\n", "arctic.yaml:2 catalogs: has a key that is not plain text"),
        ("a: &a\n  b: *a\n", "arctic.yaml:2 a.b: refers to itself"),
        (
            "catalogs:\n  a:\n    uri: ${ARCTIC_TEST_UNSET}\n",
            "arctic.yaml:3 catalogs.a.uri: the environment variable ARCTIC_TEST_UNSET is not set; "
            "set it or write ${ARCTIC_TEST_UNSET:default}",
        ),
        (
            "catalogs:\n  a:\n    uri: ${open\n",
            "arctic.yaml:3 catalogs.a.uri: '${open' is not a variable; write ${NAME}, or $${ for a literal ${",
        ),
    ],
)
def test_faults_name_file_line_and_key(write_config: WriteConfig, text: str, message: str) -> None:
    write_config(text)
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert str(caught.value) == message
    assert caught.value.facts["file"] == "arctic.yaml"
    assert caught.value.facts["line"] == int(message.split(":")[1].split()[0])


@pytest.mark.parametrize("text", ["catalogs: [\n", "a: b: c\n", "a: 1\n---\nb: 2\n", "a: *nothing\n", "a: \x01\n"])
def test_bad_yaml_is_a_config_error(write_config: WriteConfig, text: str) -> None:
    write_config(text)
    with pytest.raises(ConfigError, match=r"^arctic\.yaml:\d+ not valid YAML: "):
        config.load()


def test_all_faults_are_told_at_once(write_config: WriteConfig) -> None:
    write_config("catalogs:\n  a: 1\nservers: {}\n")
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert caught.value.facts["also"] == "arctic.yaml:3 servers: not a known key; did you mean 'service'?"


def test_a_file_that_cannot_be_read_is_a_config_error(alone: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(alone)
    (alone / "arctic.yaml").write_bytes(b"catalogs: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        config.load()


def test_secrets_of_a_faulty_file_are_not_repeated(write_config: WriteConfig) -> None:
    write_config("catalogs:\n  a: {token: [s3cr3t]}\n")
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in str(caught.value.__cause__)
