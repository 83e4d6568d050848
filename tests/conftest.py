"""What every test gets: an environment of its own, and the judges that need a JVM (see tests/oracle)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.oracle.session import Oracle

_ROOT = Path(__file__).parents[1]
_OUR_VARIABLES = ("ARCTIC_", "PYICEBERG_")

# On a loaded machine single examples are slow without anything being wrong; pytest's timeout guards the whole test.
# In CI the examples are the same every time: a run tells about the change, not about luck.
hypothesis.settings.register_profile("pyarctic", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("pyarctic")


def pytest_configure() -> None:
    # Before any import of pyiceberg, which reads its configuration once: a developer's own must not reach the tests.
    for name in _foreign_variables():
        del os.environ[name]
    os.environ["PYICEBERG_HOME"] = str(_ROOT / ".cache" / "no-configuration")
    # What session-wide fixtures may keep from run to run (Java's launcher).
    os.environ["ARCTIC_CACHE"] = str(_ROOT / ".cache" / "arctic")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No ARCTIC_ or PYICEBERG_ variable, an empty home, an empty cache."""
    home = tmp_path_factory.mktemp("home")
    for name in _foreign_variables():
        monkeypatch.delenv(name)
    for name in ("HOME", "USERPROFILE", "PYICEBERG_HOME"):
        monkeypatch.setenv(name, str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ARCTIC_CACHE", str(home / "arctic-cache"))


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """Iceberg Java (in Spark) and PyIceberg over one catalog. Mark the test `jvm`."""
    from tests.oracle.session import start

    with start(tmp_path_factory.mktemp("oracle")) as started:
        yield started


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running standalone master with one worker. Use it from a process of its own; mark the test `jvm`."""
    from tests.oracle.cluster import start

    with start(tmp_path_factory.mktemp("cluster")) as url:
        yield url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # `make test-fast` promises to run without Java: a forgotten marker would break that promise silently.
    for item in items:
        needs_jvm = {"oracle", "spark_cluster"} & set(getattr(item, "fixturenames", ()))
        if needs_jvm and item.get_closest_marker("jvm") is None:
            raise pytest.UsageError(f"{item.nodeid} uses {', '.join(sorted(needs_jvm))}: mark it with @pytest.mark.jvm")


def _foreign_variables() -> list[str]:
    return [name for name in os.environ if name.startswith(_OUR_VARIABLES)]
