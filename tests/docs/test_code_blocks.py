"""All code in README.md and docs/ runs as it stands, page by page, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import PAGES, ROOT, Block, Page
from tests.docs.prepared import SETUPS
from tests.docs.running import Runner, expect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.oracle.session import Oracle
    from tests.services.s3 import Bucket

ABOUT_THE_SERVICE = ("it needs a service", "it runs until it is stopped", "it needs another machine")
MOST_BLOCKS_NOT_RUN = 8
_CODE = [page for page in PAGES if page.blocks and "elsewhere" not in page.notes]
_PLAIN = [page for page in _CODE if "spark" not in page.notes]
_SPARK = [page for page in _CODE if "spark" in page.notes]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, which is the working directory; the environment is restored afterwards."""
    from pyarctic import config

    config.reset()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    before = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)
    config.reset()


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[Callable[[], Bucket]]:
    """Makes buckets; the server is started for the first one."""
    from tests.services.s3 import fresh_bucket

    with ExitStack() as buckets:
        yield lambda: buckets.enter_context(fresh_bucket(request.getfixturevalue("glue_properties")["glue.endpoint"]))


@pytest.mark.parametrize("page", _PLAIN, ids=lambda page: page.name)
def test_page(page: Page, folder: Path, bucket: Callable[[], Bucket]) -> None:
    run_page(page, Runner(folder=folder, bucket=bucket))


@pytest.mark.jvm
@pytest.mark.parametrize("page", _SPARK, ids=lambda page: page.name)
def test_page_with_spark(page: Page, oracle: Oracle, folder: Path, bucket: Callable[[], Bucket]) -> None:
    with iceberg_catalog(oracle.spark, folder):
        run_page(page, Runner(folder=folder, bucket=bucket, spark=oracle.spark))


def test_few_blocks_do_not_run_and_say_why() -> None:
    """Those about the service are tried in tests/server and tests/integration/ams."""
    reasons = [block for page in PAGES for block in page.blocks if block.reason_not_run is not None]
    left_out = [block for block in reasons if block.reason_not_run not in ABOUT_THE_SERVICE]
    told = "\n".join(f"{block.place}: {block.reason_not_run}" for block in left_out)
    assert all(len(block.reason_not_run or "") > 10 for block in left_out), told
    assert len(left_out) <= MOST_BLOCKS_NOT_RUN, told


def test_pages_that_run_elsewhere_are_named_there() -> None:
    for page in PAGES:
        if test := page.notes.get("elsewhere"):
            assert page.path.name in (ROOT / test).read_text(encoding="utf-8")


def test_the_job_on_the_page_about_clusters_is_the_one_that_is_tested_there() -> None:
    [job] = [block.text for page in PAGES for block in page.blocks if block.file_name == "optimize_job.py"]
    tested = (ROOT / "tests" / "spark" / "optimize_job.py").read_text(encoding="utf-8")
    assert re.sub(r"  # type: .*", "", tested).endswith(f'"""\n\n{job}')


@pytest.mark.parametrize(
    ("expected", "shown", "fits"),
    [
        ("a\nb", "a\nb\n", True),
        ("a … c", "a 17 c", True),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nd", True),
        ("a", "b", False),
        ("a …", "b 1", False),
    ],
)
def test_output_is_compared(expected: str, shown: str, fits: bool) -> None:
    block = Block(page="page", line=1, language="text", text=expected, comment="")
    if fits:
        expect(block, expected, shown)
    else:
        with pytest.raises(AssertionError, match="page:1 shows"):
            expect(block, expected, shown)


def run_page(page: Page, runner: Runner) -> None:
    if "fresh" in page.notes:
        run_separately(page, runner)
        return
    if "setup" in page.notes:
        SETUPS[page.notes["setup"]](runner)
    for block in page.blocks:
        runner.run(block)


def run_separately(page: Page, runner: Runner) -> None:
    copies = runner.folder.with_name(f"{runner.folder.name}-copies")
    for command in (command for block in page.blocks for command in block.commands()):
        start = command.start or page.notes["setup"]
        empty(runner.folder)
        if not (copies / start).exists():
            SETUPS[start](runner)
            shutil.copytree(runner.folder, copies / start)
        shutil.copytree(copies / start, runner.folder, dirs_exist_ok=True)
        runner.run(command)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def iceberg_catalog(spark: SparkSession, folder: Path) -> Iterator[None]:
    """The catalog `demo` for Iceberg Java too, as a reader has it who comes from its procedures."""
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{folder}/catalog.db",
        ".jdbc.schema-version": "V1",
        ".warehouse": (folder / "warehouse").as_uri(),
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.demo{key}", value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(f"spark.sql.catalog.demo{key}")
        spark._jsparkSession.sessionState().catalogManager().reset()  # Spark keeps catalogs that it has opened
