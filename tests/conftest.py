"""What every test gets: an environment of its own, the judges that need a JVM (tests/oracle), catalogs (tests/services)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import hypothesis
import pytest

from tests.services.catalogs import JVM_KINDS, KINDS, FreshCatalog, fresh_catalog, kinds

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from tests.oracle.session import Oracle
    from tests.services.faulty import FaultyProxy
    from tests.services.kafka import Kafka
    from tests.services.mariadb import MariaDb
    from tests.services.metastore import Metastore
    from tests.services.postgres import Postgres
    from tests.services.rest import RestServer
    from tests.support.cli_library import Arctic, Ran
    from tests.support.stores import DatabaseUrls

_ROOT = Path(__file__).parents[1]
_OUR_VARIABLES = ("ARCTIC_", "PYICEBERG_", "AWS_")
_NEED_JVM = frozenset({"oracle", "spark_cluster", "rest_server", "faulty_rest", "metastore", "kafka"})

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
    # The services of the tests are on this machine, whatever proxy leads away from it.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
    # Shells start background jobs with SIGINT ignored, and so would be the programs that the tests interrupt.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No ARCTIC_, PYICEBERG_ or AWS_ variable, an empty home, an empty cache."""
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


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    """Iceberg's own REST catalog server. Mark the test `jvm`."""
    from tests.services.rest import start

    with start(tmp_path_factory.mktemp("rest")) as started:
        yield started


@pytest.fixture
def faulty_rest(rest_server: RestServer) -> Iterator[FaultyProxy]:
    """The same server behind a proxy that spoils commits as it is told to. Mark the test `jvm`."""
    from tests.services.faulty import start

    with start(rest_server.uri) as started:
        yield started


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL server."""
    from tests.services.postgres import start

    with start(tmp_path_factory.mktemp("postgres")) as started:
        yield started


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    """A MariaDB server."""
    from tests.services.mariadb import start

    with start(tmp_path_factory.mktemp("mariadb")) as started:
        yield started


@pytest.fixture(scope="session")
def database_urls(request: pytest.FixtureRequest) -> DatabaseUrls:
    """Where the databases of the service's tests are, by their kind: a server is started when it is asked for."""
    return {
        "postgresql": lambda: cast("Postgres", request.getfixturevalue("postgres")).uri,
        "mariadb": lambda: cast("MariaDb", request.getfixturevalue("mariadb")).uri,
    }


@pytest.fixture(scope="session")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    """A Hive Metastore. Mark the test `jvm`."""
    from tests.services.metastore import start

    with start(tmp_path_factory.mktemp("metastore")) as started:
        yield started


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka broker. Mark the test `jvm`."""
    from tests.services.kafka import start

    with start(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="session")
def glue_properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The properties of a PyIceberg catalog on a running Glue."""
    from tests.services.glue import start

    with start(tmp_path_factory.mktemp("glue")) as started:
        yield started


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Catalog]:
    """An SQLite catalog of its own for a test, known as "lake", with the namespace "db"."""
    import pyarctic
    from pyarctic import config

    config.reset()
    catalog = pyarctic.catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    yield catalog
    catalog.close()
    config.reset()


@pytest.fixture
def arctic(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arctic:
    """Runs `arctic` in this process with these words, in an empty folder."""
    from pyarctic import config
    from pyarctic.cli.app import main
    from tests.support import cli_library

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    config.reset()

    def run(*words: str) -> Ran:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return cli_library.Ran(code, out, err)

    return run


@pytest.fixture(params=kinds(*KINDS))
def any_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FreshCatalog]:
    """A fresh catalog: the test runs once on every kind there is (see tests/services/catalogs.py)."""
    with fresh_catalog(request.param, request, tmp_path) as opened:
        yield opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # `make test-fast` promises to run without Java: a forgotten marker would break that promise silently.
    for item in items:
        needs_jvm = _NEED_JVM & set(getattr(item, "fixturenames", ()))
        if (callspec := getattr(item, "callspec", None)) and callspec.params.get("any_catalog") in JVM_KINDS:
            needs_jvm |= {"any_catalog"}
        if needs_jvm and item.get_closest_marker("jvm") is None:
            raise pytest.UsageError(f"{item.nodeid} uses {', '.join(sorted(needs_jvm))}: mark it with @pytest.mark.jvm")


def _foreign_variables() -> list[str]:
    return [name for name in os.environ if name.startswith(_OUR_VARIABLES)]
