"""Get the jars that tests need into `.cache/jars`, unless they are there: `python -m tests.support.jars`.

Each set is named in a pom. Maven gets it where it is installed, with the machine's own settings. Elsewhere the Ivy in
PySpark's jars does; it reads the pom through a translation, because only Ivy's own format names a jar by its classifier.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import pyspark

from pyarctic.spark import java

SPARK_JARS = Path(pyspark.__file__).parent / "jars"

_TESTS = Path(__file__).parents[1]
_CACHE = _TESTS.parent / ".cache" / "jars"
_MAVEN = {"m": "http://maven.apache.org/POM/4.0.0"}
_CLASSIFIER = "{http://ant.apache.org/ivy/maven}classifier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """The jars of one pom, and the folder where they are kept."""

    pom: Path
    folder: Path

    def paths(self) -> tuple[Path, ...]:
        """The jars on disk; an error says how to get them."""
        if not self._is_current():
            raise FileNotFoundError(f"the jars of {self.pom.name} are not in {self.folder}: run `make jars`")
        return tuple(sorted(self.folder.glob("*.jar")))

    def fetch(self) -> None:
        """Fetch the jars unless the folder already holds what the pom asks for."""
        if self._is_current():
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target and renamed when complete: an interrupted run leaves no half-filled folder that looks right.
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as temporary:
            folder = Path(temporary, "jars")
            _first_that_works(self.pom, folder)
            Path(folder, "stamp").write_text(self._stamp())
            shutil.rmtree(self.folder, ignore_errors=True)
            folder.rename(self.folder)

    def _stamp(self) -> str:
        return sha256(self.pom.read_bytes()).hexdigest()

    def _is_current(self) -> bool:
        stamp = self.folder / "stamp"
        return stamp.is_file() and stamp.read_text() == self._stamp()


ORACLE = Jars(pom=_TESTS / "oracle" / "pom.xml", folder=_CACHE / "spark")
REST = Jars(pom=_TESTS / "services" / "rest-pom.xml", folder=_CACHE / "rest")
KAFKA = Jars(pom=_TESTS / "services" / "kafka-pom.xml", folder=_CACHE / "kafka")
KAFKA_SOURCE = Jars(pom=_TESTS / "services" / "kafka-source-pom.xml", folder=_CACHE / "kafka-source")
MARIADB = Jars(pom=_TESTS / "services" / "mariadb-pom.xml", folder=_CACHE / "mariadb")
ALL = (ORACLE, REST, KAFKA, KAFKA_SOURCE, MARIADB)


def with_maven(pom: Path, folder: Path) -> None:
    command = ["mvn", "-q", "-B", "-ntp", "-Dstyle.color=never", "-f", str(pom), "dependency:copy-dependencies"]
    subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"], check=True)


def with_ivy(pom: Path, folder: Path) -> None:
    [ivy] = SPARK_JARS.glob("ivy-*.jar")
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        module, settings = Path(temporary, "ivy.xml"), Path(temporary, "ivysettings.xml")
        ElementTree.ElementTree(_ivy_module(pom)).write(module)
        ElementTree.ElementTree(_ivy_settings()).write(settings)
        command = [java.find_java().executable, "-jar", ivy, "-settings", settings, "-cache", temporary, "-ivy", module]
        options = ["-types", "jar", "bundle", "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
        # Ivy reports every step on stdout, which is worth reading only after a failure.
        subprocess.run([*map(str, command), *options], check=True, capture_output=True, text=True)


def _first_that_works(pom: Path, folder: Path) -> None:
    failures = []
    for way in (with_maven, with_ivy):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            way(pom, folder)
        except (OSError, subprocess.CalledProcessError) as error:
            told = (getattr(error, stream, None) or "" for stream in ("stdout", "stderr"))
            failures.append(f"{way.__name__}: {error}\n{''.join(told)}")
        else:
            return
    raise SystemExit("\n".join(("Could not get the jars; are the package registries reachable?", *failures)))


def _ivy_module(pom: Path) -> Element:
    """What the pom asks for, in Ivy's words. A module with several jars (by classifier) is one dependency there."""
    module = Element("ivy-module", version="2.0")
    SubElement(module, "info", organisation="pyarctic.tests", module=pom.stem)
    SubElement(SubElement(module, "configurations"), "conf", name="default")
    dependencies = SubElement(module, "dependencies", defaultconf="default->default")
    asked: dict[tuple[str, str, str], Element] = {}
    for group, artifact, version, classifier, alone in _dependencies(pom):
        key = (group, artifact, version)
        if key not in asked:
            transitive = str(not alone).lower()
            asked[key] = SubElement(dependencies, "dependency", org=group, name=artifact, rev=version, transitive=transitive)
        jar = SubElement(asked[key], "artifact", name=artifact, type="jar")
        if classifier:
            jar.set(_CLASSIFIER, classifier)
    return module


def _dependencies(pom: Path) -> Iterator[tuple[str, str, str, str, bool]]:
    """Group, artifact, version, classifier, and whether it comes alone: the poms exclude all of its dependencies or none."""
    for one in ElementTree.parse(pom).iterfind("m:dependencies/m:dependency", _MAVEN):
        group, artifact, version, classifier = (
            one.findtext(f"m:{part}", "", _MAVEN) for part in ("groupId", "artifactId", "version", "classifier")
        )
        yield group, artifact, version, classifier, one.find("m:exclusions", _MAVEN) is not None


def _ivy_settings() -> Element:
    settings = Element("ivysettings")
    SubElement(settings, "settings", defaultResolver="registry")
    registry = SubElement(SubElement(settings, "resolvers"), "ibiblio", name="registry", m2compatible="true")
    # Without a root it is Maven Central. Spark's own resolver listens to the same variable.
    if root := os.environ.get("DEFAULT_ARTIFACT_REPOSITORY"):
        registry.set("root", root)
    return settings


if __name__ == "__main__":
    for jars in ALL:
        jars.fetch()
