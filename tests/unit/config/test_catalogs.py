"""Where configuration is looked for, and which catalog a name means."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyarctic import config
from pyarctic.errors import ConfigError, UsageError

WriteConfig = Callable[[str], Path]


def declare_in(path: Path, name: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"catalogs: {{{name}: {{type: sql}}}}\n", encoding="utf-8")
    return path


def test_without_any_file_the_config_is_empty() -> None:
    assert config.load() == config.Config()
    assert config.load().source is None
    assert config.declared_names() == []
    assert config.catalog_properties("demo") is None


def test_the_nearest_file_wins(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_in(tmp_path / "home/.config/arctic/arctic.yaml", "home")
    assert config.declared_names() == ["home"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config.declared_names() == []
    declare_in(tmp_path / "xdg/arctic/arctic.yaml", "xdg")
    assert config.declared_names() == ["xdg"]
    declare_in(alone / "arctic.yaml", "here")
    assert config.declared_names() == ["here"]
    monkeypatch.setenv("ARCTIC_CONFIG", str(declare_in(tmp_path / "variable.yaml", "variable")))
    assert config.declared_names() == ["variable"]
    config.use(declare_in(tmp_path / "used.yaml", "used"))
    assert config.declared_names() == ["used"]
    given = declare_in(tmp_path / "given.yaml", "given")
    assert list(config.load(given).catalogs) == ["given"]
    config.use(None)
    assert config.declared_names() == ["variable"]


def test_a_named_file_must_exist(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: no such configuration file"):
        config.load(Path("no.yaml"))
    monkeypatch.setenv("ARCTIC_CONFIG", "gone.yaml")
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert caught.value.hint == "The file is set by $ARCTIC_CONFIG. Correct it, or unset the variable."


def test_an_edit_counts_at_once(write_config: WriteConfig) -> None:
    write_config("catalogs: {a: {}}")
    assert config.declared_names() == ["a"]
    write_config("catalogs: {b: {}}")
    assert config.declared_names() == ["b"]


def test_declared_catalogs_win_over_the_file(write_config: WriteConfig) -> None:
    write_config("catalogs: {demo: {type: rest}, prod: {type: hive}}")
    config.declare_catalog("demo", {"type": "sql", "echo": True, "pool": 3, "token": None})
    assert config.catalog_properties("demo") == {"type": "sql", "echo": "true", "pool": "3"}
    assert config.catalog_properties("prod") == {"type": "hive"}
    assert config.declared_names() == ["demo", "prod"]
    assert [config.catalog_origin(name) for name in ("demo", "prod", "other")] == ["process", "file", None]
    config.reset()
    assert config.catalog_properties("demo") == {"type": "rest"}


@pytest.mark.parametrize("name", ["", "a.b", "a b"])
def test_a_catalog_no_table_name_could_mean_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        config.declare_catalog(name, {})


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.cache_dir() == tmp_path / "home/.cache/arctic"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert config.cache_dir() == tmp_path / "home/.cache/arctic"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert config.cache_dir() == tmp_path / "xdg/arctic"
    monkeypatch.setenv("ARCTIC_CACHE", str(tmp_path / "mine"))
    assert config.cache_dir() == tmp_path / "mine"


@pytest.mark.parametrize("name", ["demo.shop.orders", "demo.a.b.c.orders"])
def test_table_names_come_apart_and_together(name: str) -> None:
    parsed = config.parse_table_name(name)
    assert str(parsed) == name
    assert (parsed.catalog, *parsed.namespace, parsed.table) == tuple(name.split("."))
    assert parsed.identifier == tuple(name.split(".")[1:])


@pytest.mark.parametrize("name", ["", "orders", "shop.orders", "demo..orders", "demo.shop."])
def test_incomplete_table_names_are_refused_with_a_hint(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        config.parse_table_name(name)
    assert "demo.shop.orders" in (caught.value.hint or "")


def test_secrets_are_masked() -> None:
    properties = {
        "type": "sql",
        "uri": "postgresql+psycopg2://anna:pa@ss:word@db.example/x?sslmode=on&api_key=abc",
        "s3.secret-access-key": "a",
        "s3.access-key-id": "b",
        "Token": "c",
        "credential": "d",
        "db.PASSWORD": "e",
        "warehouse": "s3://lake/path",
    }
    assert config.mask_properties(properties) == {
        "type": "sql",
        "uri": "postgresql+psycopg2://anna:***@db.example/x?sslmode=on&api_key=***",
        "s3.secret-access-key": "***",
        "s3.access-key-id": "***",
        "Token": "***",
        "credential": "***",
        "db.PASSWORD": "***",
        "warehouse": "s3://lake/path",
    }


def test_the_room_loads_nothing_heavy() -> None:
    code = "import sys, pyarctic.config as c; c.load(); print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyiceberg", "pyarrow", "polars", "pydantic", "yaml", "typer", "rich"} & set(loaded)
