"""Checks of the environment: each returns ok, note, warn or fault, with a detail and a hint how to fix it."""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import typer

from pyarctic.cli.errors import NEGATIVE_RESULT, option_text
from pyarctic.cli.view.columns import Column
from pyarctic.errors import ArcticError
from pyarctic.units import format_quantity

State = Literal["ok", "note", "warn", "fault"]
CATALOG_TIMEOUT_SECONDS = 20.0
"""How long a catalog may take to respond before it counts as unreachable."""
OLDEST_PYTHON = (3, 11)
SPARK_SERIES = ("3.5", "4.0", "4.1")

CHECK_COLUMNS = (
    Column("state", "State", "state", priority=0),
    Column("check", "Check", priority=0, identity=True),
    Column("detail", "Detail", priority=0, fit="wrap"),
    Column("hint", "Hint", priority=0, fit="wrap", optional=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    check: str
    state: State
    detail: str
    hint: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"check": self.check, "state": self.state, "detail": self.detail, "hint": self.hint}


def exit_on_fault(checks: Iterable[Check]) -> None:
    """Exit with code 1 if any check is a fault."""
    if any(check.state == "fault" for check in checks):
        raise typer.Exit(NEGATIVE_RESULT)


def run_checks() -> Iterator[Check]:
    """Run all checks of `arctic doctor`, in the order of their dependencies."""
    yield check_python()
    for package in ("pyiceberg", "pyarrow", "polars"):
        yield check_package(package)
    yield check_pyspark()
    yield check_java()
    yield check_cache()
    config = check_config()
    yield config
    if config.state != "fault":
        yield from check_catalogs()


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> Check:
    text = ".".join(str(part) for part in version)
    if version[:2] >= OLDEST_PYTHON:
        return Check(check="python", state="ok", detail=text)
    return Check(check="python", state="fault", detail=text, hint="PyArctic needs Python 3.11 or newer.")


def check_package(name: str) -> Check:
    version = _installed_version(name)
    if version is None:
        return Check(check=name, state="fault", detail="not installed", hint=f"Install it: `pip install {name}`.")
    return Check(check=name, state="ok", detail=version)


def check_pyspark() -> Check:
    """Check for Spark. Few need it, so a missing one is only noted."""
    version = _installed_version("pyspark")
    hint = "Needed for Spark only: `pip install 'pyarctic[spark]'`."
    if version is None:
        return Check(check="pyspark", state="note", detail="not installed", hint=hint)
    if ".".join(version.split(".")[:2]) not in SPARK_SERIES:
        detail = f"{version} is none of {', '.join(SPARK_SERIES)}"
        return Check(check="pyspark", state="warn", detail=detail, hint=hint)
    return Check(check="pyspark", state="ok", detail=version)


def check_java() -> Check:
    """Check for Java. Only Spark needs it, so a missing Java is a warning, or without Spark a note."""
    from pyarctic.spark import find_java

    try:
        java = find_java()
    except ArcticError as error:
        state: State = "note" if _installed_version("pyspark") is None else "warn"
        return Check(check="java", state=state, detail=str(error), hint=error.hint_in(option_text))
    return Check(check="java", state="ok", detail=f"{java.major}, {java.executable} ({java.origin})")


def check_cache() -> Check:
    from pyarctic.config import cache_dir

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        detail = f"{folder} is not writable: {error.strerror or error}"
        return Check(check="cache", state="fault", detail=detail, hint="Set ARCTIC_CACHE to a writable folder.")
    return Check(check="cache", state="ok", detail=str(folder))


def check_config() -> Check:
    from pyarctic.config import load

    try:
        config = load()
    except ArcticError as error:
        return Check(check="config", state="fault", detail=str(error), hint=error.hint_in(option_text))
    if config.source is None:
        return Check(check="config", state="ok", detail="no arctic.yaml; using the catalogs of PyIceberg's configuration")
    count = len(config.catalogs)
    return Check(check="config", state="ok", detail=f"{config.source}, {format_quantity(count, 'catalog')}")


def check_catalogs() -> Iterator[Check]:
    from pyarctic.iceberg.catalog import catalog_names

    names = catalog_names()
    if not names:
        hint = "`arctic init` creates one; others are declared in arctic.yaml."
        yield Check(check="catalogs", state="warn", detail="none configured", hint=hint)
    for name in names:
        yield check_catalog(name)


def check_catalog(name: str) -> Check:
    """Check that the catalog responds, by listing its databases."""
    from pyarctic.config import mask_text

    results: list[Check] = []

    def list_databases() -> None:
        from pyarctic.iceberg.catalog import open_catalog, translate_catalog_errors

        try:
            catalog = open_catalog(name)
            with translate_catalog_errors(name):
                count = len(catalog.list_namespaces())
        except ArcticError as error:
            detail = mask_text(str(error))
            results.append(Check(check=f"catalog {name}", state="fault", detail=detail, hint=error.hint_in(option_text)))
        except Exception as error:  # noqa: BLE001 - whatever the catalog raises is the result
            detail = mask_text(f"{type(error).__name__}: {' '.join(str(error).split())}")
            hint = "Check its address and credentials: `arctic catalog ls --wide`."
            results.append(Check(check=f"catalog {name}", state="fault", detail=detail, hint=hint))
        else:
            detail = f"responds; {format_quantity(count, 'database')}"
            results.append(Check(check=f"catalog {name}", state="ok", detail=detail))

    # A daemon thread, because a hanging connection has no timeout of its own and must not block the other checks.
    thread = threading.Thread(target=list_databases, daemon=True)
    thread.start()
    thread.join(CATALOG_TIMEOUT_SECONDS)
    if results:
        return results[0]
    detail = f"no response within {CATALOG_TIMEOUT_SECONDS:.0f} s"
    return Check(
        check=f"catalog {name}", state="fault", detail=detail, hint="Check that its address is correct and reachable."
    )


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
