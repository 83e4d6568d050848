"""A request to a real REST catalog that is held, until a successor of its process has gone on or given up."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException

import pyarctic
from pyarctic.iceberg.write import told_snapshot
from tests.faults.kept import Kept, dying
from tests.services.rest import RestServer
from tests.support.integrity import leftovers_of_ours, missing

pytestmark = pytest.mark.jvm

_SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def table(rest_server: RestServer) -> str:
    namespace = f"held_{uuid4().hex[:8]}"
    with load_catalog("held", type="rest", uri=rest_server.uri) as catalog:
        catalog.create_namespace(namespace)
    pyarctic.catalog("held", type="rest", uri=rest_server.uri)
    table = pyarctic.create_table(f"held.{namespace}.t", _SCHEMA, properties={"commit.retry.min-wait-ms": "1"})
    for number in range(4):
        table.write(pa.table([[number]], schema=_SCHEMA))
    return table.name


def check(process: Kept) -> None:
    table = pyarctic.table(process.table)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
    assert missing(table._loaded) == []
    commits = {record.snapshot_id for record in process.log.records}
    left = leftovers_of_ours(table._loaded)
    assert [path for path in left if process.plan.job.id in path or told_snapshot(path) in commits] == []


def test_it_is_refused_after_the_process_was_closed(table: str) -> None:
    process = Kept.planned(table)
    with dying(landed=False, catalog=RestCatalog) as held:
        process.commit()
    process.clean()
    process.close()
    process.clean()
    [let_through] = held
    with pytest.raises(CommitFailedException):
        let_through()
    assert process.log.committed_units == []
    check(process)


def test_it_lands_before_the_process_is_closed(table: str) -> None:
    process = Kept.planned(table)
    with dying(landed=False, catalog=RestCatalog) as held:
        process.commit()
    process.clean()
    [let_through] = held
    let_through()
    process.close()
    process.clean()
    assert process.log.committed_units == process.units
    check(process)
