"""An optimizer that strangers wrote from the documents: its results are accepted and committed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField

from pyarctic.ams import Ams
from pyarctic.client import Client
from pyarctic.server import HttpServer
from tests.server import foreign_optimizer
from tests.server.folders import files_in, live_files
from tests.server.requests import TOKEN
from tests.support import changes

_PROGRAM = Path(foreign_optimizer.__file__)


def test_it_knows_nothing_of_pyarctic() -> None:
    tree = ast.parse(_PROGRAM.read_text())
    imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"pyarrow"}


def test_its_results_are_committed(ams: Ams, server: HttpServer, client: Client, lake: Catalog, tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", IntegerType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    properties = {"self-optimizing.minor.trigger.file-count": "2", "self-optimizing.writers-first": "false"}
    table = lake.create_table("db.orders", schema, partition_spec=spec, properties=properties)
    for first in range(0, 300, 100):
        ids = np.arange(first, first + 100)
        table.append(pa.table({"id": ids, "part": pa.array(ids % 2, pa.int32())}))
    before = changes.rows(table).sort_by("id")
    ams.looks.discover()
    [row] = ams.looks.due()
    ams.looks.look(row.uuid)

    subprocess.run([sys.executable, "-W", "error", str(_PROGRAM), server.url, TOKEN], check=True, timeout=120)

    ams.commits.commit(row.uuid)
    ams.cleaning.clean(row.uuid)
    [process] = client.processes()
    assert (process["state"], process["outcome"]) == ("succeeded", "all 2 tasks are in the table")
    assert [(each["version"], each["state"]) for each in client.optimizers()] == [("foreign 1", "stopped")]
    after = table.refresh()
    assert changes.rows(after).sort_by("id").equals(before)
    scanned = after.scan(row_filter="id < 150 and part = 1").to_arrow()
    assert sorted(scanned["id"].to_pylist()) == list(range(1, 150, 2))
    assert pc.count(scanned["part"]).as_py() == 75
    assert changes.files(after)["record_count"].to_list() == [150, 150]
    assert files_in(tmp_path) == live_files(after)
