"""Get the jars named in pom.xml into `.cache/jars/spark`, unless they are there: `python -m tests.oracle.jars`.

Maven does it where it is installed, with the machine's own settings. Elsewhere the Ivy inside Spark does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

POM = Path(__file__).with_name("pom.xml")
FOLDER = Path(__file__).parents[2] / ".cache" / "jars" / "spark"
_NAMESPACE = {"m": "http://maven.apache.org/POM/4.0.0"}


def coordinates() -> tuple[str, ...]:
    """What the pom asks for, as `group:artifact:version`."""
    found = ElementTree.parse(POM).iterfind("m:dependencies/m:dependency", _NAMESPACE)
    return tuple(
        ":".join(one.findtext(f"m:{part}", "", _NAMESPACE) for part in ("groupId", "artifactId", "version")) for one in found
    )


def paths() -> tuple[Path, ...]:
    """The jars on disk; an error says how to get them."""
    if not _is_current():
        raise FileNotFoundError(f"the jars of {POM.name} are not in {FOLDER}: run `make jars`")
    return tuple(sorted(FOLDER.glob("*.jar")))


def fetch() -> None:
    """Fetch the jars unless the folder already holds what the pom asks for."""
    if _is_current():
        return
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target and renamed when complete: an interrupted run leaves no half-filled folder that looks right.
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as temporary:
        folder = Path(temporary, "jars")
        _first_that_works(folder, with_maven, with_ivy)
        Path(folder, "stamp").write_text(_stamp())
        shutil.rmtree(FOLDER, ignore_errors=True)
        folder.rename(FOLDER)


def with_maven(folder: Path) -> None:
    command = ["mvn", "-q", "-B", "-ntp", "-Dstyle.color=never", "-f", str(POM), "dependency:copy-dependencies"]
    subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"], check=True)


def with_ivy(folder: Path) -> None:
    """Let a throw-away Spark application resolve the jars, in a process of its own, since a JVM resolves once."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as ivy:
        command = [sys.executable, "-c", "import sys; from tests.oracle import jars; jars.resolve(sys.argv[1])", ivy]
        root = str(FOLDER.parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
        # Ivy reports every step on stderr, which is worth reading only after a failure.
        subprocess.run(command, check=True, env=environment, stderr=subprocess.PIPE, text=True)
        shutil.copytree(Path(ivy, "jars"), folder)


def resolve(ivy: str) -> None:
    """The application of `with_ivy`."""
    from pyarctic.spark import session

    settings = {
        "spark.master": "local[1]",
        "spark.jars.packages": ",".join(coordinates()),
        "spark.jars.excludes": "org.slf4j:slf4j-api",  # Spark brings it
        "spark.jars.ivy": ivy,
    }
    session("jars", **settings).stop()


def _first_that_works(folder: Path, *ways: Callable[[Path], None]) -> None:
    failures = []
    for way in ways:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            way(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            failures.append(f"{way.__name__}: {error}\n{getattr(error, 'stderr', None) or ''}")
        else:
            return
    raise SystemExit("\n".join(("Could not get the jars; are the package registries reachable?", *failures)))


def _stamp() -> str:
    return sha256(POM.read_bytes()).hexdigest()


def _is_current() -> bool:
    stamp = FOLDER / "stamp"
    return stamp.is_file() and stamp.read_text() == _stamp()


if __name__ == "__main__":
    fetch()
