"""Optimizing through a REST catalog whose tokens and storage credentials expire, and where its secrets go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io import S3_SIGNER, FileIO

import pyarctic
from pyarctic import config
from pyarctic.iceberg import AUTH_MANAGER
from pyarctic.iceberg.catalog import apply_patches
from pyarctic.optimizing import Options, Report, process
from pyarctic.optimizing.api import plan_table
from pyarctic.optimizing.execute import AttemptFuture, LocalEngine, renewed_storage
from pyarctic.optimizing.protocol import Job, Progress, Task
from pyarctic.tables import Table, open_table
from tests.services import guarded
from tests.support.fragmented_table import TASKS, fragmented_table

NATIVE = "guarded.db.fragmented"


@pytest.fixture
def native(lake: Catalog) -> Catalog:
    apply_patches()
    fragmented_table(lake, "db.fragmented")
    return lake


@pytest.fixture
def keyed(lake: Catalog) -> Iterator[str]:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = pyarctic.create_table("lake.db.people", schema, ["id"])
    table.write(pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=schema), mode="upsert")
    table.write(pa.table({"id": [1], "v": ["c"]}, schema=schema), mode="upsert")
    yield "guarded.db.people"
    config.reset()


def ids(name: str) -> list[int]:
    return sorted(pyarctic.table(name).scan().to_arrow()["id"].to_pylist())


def test_tokens_and_credentials_are_renewed_during_a_process(native: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task takes half a second and more; no token or credential lives as long as two of them."""
    monkeypatch.setattr(renewed_storage, "RENEW_SECONDS", 0.1)
    rows = ids("lake.db.fragmented")
    with guarded.start(native, token_seconds=0.5, storage_seconds=1.5, write_seconds=0.6) as server:
        pyarctic.catalog("guarded", **server.properties)
        report = pyarctic.optimize(NATIVE, "full", workers=1)
        refused = server.refused
    assert (report.failures, report.tasks_committed) == ((), TASKS)
    assert refused > 0, "no token has expired: the test tests nothing"
    assert ids("lake.db.fragmented") == rows


def test_a_keyed_table(lake: Catalog, keyed: str) -> None:
    with guarded.start(lake) as server:
        pyarctic.catalog("guarded", **server.properties)
        report = pyarctic.optimize(keyed, "full")
    assert (report.failures, report.after.change_files) == ((), 0)
    assert ids("lake.db.people") == [1, 2]


class _Tokens:
    """A token server that does not answer every time."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)

    def auth_header(self) -> str:
        if not self.answers.pop(0):
            raise ConnectionError("no route")
        return f"Bearer {len(self.answers)}"


@pytest.mark.parametrize(
    ("answers", "committed"), [((False, True, *[False] * (TASKS - 1)), TASKS), ((False,) * 3 * TASKS, 0)]
)
def test_a_token_server_that_is_down_fails_attempts_only(
    native: Catalog, monkeypatch: pytest.MonkeyPatch, answers: tuple[bool, ...], committed: int
) -> None:
    """A catalog that signs requests. The last token is used on."""
    tokens = _Tokens(*answers)
    signing = {S3_SIGNER: "S3V4RestSigner", AUTH_MANAGER: tokens}

    class Signed(renewed_storage.RenewedStorage):
        def __init__(self, table: Table) -> None:
            table.view.io.properties.update(signing)
            super().__init__(table)

    monkeypatch.setattr(process, "RenewedStorage", Signed)
    report = pyarctic.optimize("lake.db.fragmented", "full", LocalEngine(1))
    assert (report.tasks_committed, len(report.failures)) == (committed, TASKS - committed)
    assert {failure.code for failure in report.failures} == ({"unavailable"} if report.failures else set())
    assert tokens.answers == []


class _Recorder(LocalEngine):
    """Keeps what is sent to workers, and may be stored or logged."""

    def __init__(self) -> None:
        super().__init__(1)
        self.documents: list[object] = []

    def submit(self, job: Job, io: FileIO, task: Task, attempt: int, listen: Callable[[Progress], None]) -> AttemptFuture:
        self.documents += [job.to_json(), task.to_json()]
        future = super().submit(job, io, task, attempt, listen)
        future.add_done_callback(lambda ended: self.documents.append(ended.result().to_json()))
        return future


@pytest.mark.parametrize("kind", ["native", "keyed"])
def test_no_document_holds_a_secret(lake: Catalog, kind: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(kind)
    name = NATIVE if kind == "native" else "guarded.db.people"
    table = lake.load_table(".".join(name.split(".")[1:]))
    with table.transaction() as transaction:
        transaction.set_properties({"s3.secret-access-key": "table-secret", "adls.account-key": "table-secret"})
    with guarded.start(lake) as server:
        pyarctic.catalog("guarded", **server.properties)
        engine = _Recorder()
        plan = plan_table(open_table(name), Options(kind="full"))
        assert plan is not None
        report: Report = pyarctic.optimize(name, "full", engine)
        secrets = {*server.secrets, "table-secret"}
    assert not report.failures
    text = json.dumps([*engine.documents, plan.to_json(), report.to_dict()])
    assert len(secrets) > 4
    assert [secret for secret in secrets if secret in text] == []
