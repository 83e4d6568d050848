"""A table that a stream of files is written to, by jobs that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import pyarctic
from pyarctic.tables import KeyedTable
from tests.faults.test_optimize_faults import wait_until
from tests.spark import scripted_storage
from tests.support.integrity import leftovers, missing

NAME = "demo.shop.orders"
SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string(), "value": pa.int64()})
LOCAL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_HERE = Path(__file__).parent
_JOB_SECONDS = 150

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StreamLab:
    """Folders of a stream, and the table it leads to."""

    folder: Path
    table: KeyedTable

    @classmethod
    def made(cls, folder: Path) -> StreamLab:
        """A new catalog in a folder; jobs know it with scripted storage."""
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()}
        pyarctic.catalog("demo", **properties)
        table = pyarctic.create_table(NAME, SCHEMA, ["id", "part"], ["part"])
        assert isinstance(table, KeyedTable)
        lab = cls(folder=folder, table=table)
        for made in (lab.source, lab.orders):
            made.mkdir()
        scripted = {"py-io-impl": "scripted_storage.ScriptedFileIO", scripted_storage.FOLDER: str(lab.orders)}
        (folder / "arctic.yaml").write_text(json.dumps({"catalogs": {"demo": properties | scripted}}))
        return lab

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    def add_file(self, rows: list[Row]) -> None:
        """The next file of the stream. Spark takes files by their age."""
        number = len(list(self.source.iterdir()))
        hidden = self.source / f".{number}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + number,) * 2)
        hidden.rename(self.source / f"{number:03d}.json")

    def order(self, name: str, batch: int | None = None) -> None:
        """Give an order now, or when a batch begins."""
        folder = self.orders if batch is None else self.orders / f"batch-{batch}"
        folder.mkdir(exist_ok=True)
        scripted_storage.sign_of(self.orders, name).unlink(missing_ok=True)
        (folder / name).touch()

    def taken(self, order: str, after: dict[str, Any] | None = None) -> dict[str, Any]:
        """Wait until somebody took an order, or took it again; gives the process and the file."""
        sign = scripted_storage.sign_of(self.orders, order)
        wait_until(lambda: sign.exists() and json.loads(sign.read_text()) != after, seconds=100)
        told: dict[str, Any] = json.loads(sign.read_text())
        return told

    def stream(self, settings: Mapping[str, str], **variables: str) -> AbstractContextManager[Job]:
        """The stream as a process."""
        arguments = [NAME, self.source.as_uri(), self.checkpoint.as_uri(), str(self.orders), json.dumps(dict(settings))]
        return self.job("stream_job.py", arguments, **variables)

    @contextmanager
    def job(self, script: str, arguments: list[str], **variables: str) -> Iterator[Job]:
        """A process that knows the catalog. It ends with everything it started."""
        environment = os.environ | {
            "ARCTIC_CONFIG": str(self.folder / "arctic.yaml"),
            "PYTHONPATH": str(_HERE),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **variables,
        }
        with (
            (self.folder / "log").open("a") as log,
            subprocess.Popen(
                [sys.executable, _HERE / script, *arguments],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as process,
        ):
            job = Job(process=process, log=self.folder / "log")
            try:
                yield job
            finally:
                job.lose_machine()

    # What must be true of the table

    def rows(self) -> dict[tuple[int, str], int]:
        found = self.table.refresh().scan().to_arrow().to_pylist()
        told = {(row["id"], row["part"]): row["value"] for row in found}
        assert len(told) == len(found), "a key is there twice"
        return told

    def expected(self) -> dict[tuple[int, str], int]:
        """Of every key the value of the last file that has it, and of its rows there the one with the greatest n."""
        last: dict[tuple[int, str], int] = {}
        for file in sorted(self.source.iterdir()):
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            last |= {(row["id"], row["part"]): row["value"] for row in sorted(rows, key=lambda row: int(row["n"]))}
        return last

    def query_id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def commits(self) -> Counter[tuple[str, str]]:
        """How often each batch of each query was committed."""
        found: Counter[tuple[str, str]] = Counter()
        for snapshot in self.table.refresh().change_store.view.metadata.snapshots:
            told = snapshot.summary.additional_properties if snapshot.summary else {}
            if "arctic.stream.batch-id" in told:
                found[told["arctic.stream.query-id"], told["arctic.stream.batch-id"]] += 1
        return found

    def left_files(self) -> list[str]:
        """Files of changes that no snapshot has; none of the others is missing."""
        store = self.table.refresh().change_store
        loaded = pyarctic.catalog("demo").load_table(tuple(store.name.split(".")[1:]))
        assert missing(loaded) == []
        return leftovers(loaded)

    def left_operations(self) -> set[str]:
        """Who wrote them. There are none but data files."""
        return {operation_of(path) for path in self.left_files()}

    def committed_files(self) -> list[str]:
        return self.table.refresh().files(store="change")["file_path"].to_list()

    def committed_operations(self) -> set[str]:
        return {operation_of(path) for path in self.committed_files()}


def operation_of(path: str) -> str:
    """Of `4-I-0-00000-2-7301827364518273645-00001.parquet` the long number."""
    return attempt_of(path)[-1]


def attempt_of(path: str) -> tuple[str, str, str]:
    """Task, attempt and operation."""
    name = Path(path).name
    assert name.endswith(".parquet"), name
    _, _, _, task, attempt, operation, _ = name.split("-")
    return task, attempt, operation


@dataclass(frozen=True, kw_only=True)
class Job:
    process: subprocess.Popen[bytes]
    log: Path

    def finish(self) -> None:
        assert self.process.wait(_JOB_SECONDS) == 0, self.log.read_text(errors="replace")[-3000:]

    def kill_driver(self) -> None:
        """Python alone: its JVM finds out after a while."""
        self.process.kill()
        self.process.wait()

    def lose_machine(self) -> None:
        """Everything at once: the driver, its JVM, the tasks."""
        while processes := processes_of_session(self.process.pid):
            for process in processes:
                with _gone_already():
                    os.kill(process, signal.SIGKILL)
            self.process.wait()


@contextmanager
def _gone_already() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        return


def processes_of_session(session: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with _gone_already():
            state, _, _, own, *_ = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if int(own) == session and state != "Z":
                found.append(int(folder.name))
    return found
