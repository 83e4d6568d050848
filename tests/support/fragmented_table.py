"""A small table that needs optimizing: three partitions, one task for each."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField

from tests.support import changes

FIRST, SECOND, THIRD = 0, 1, 2
"""Its tasks, in the order in which they are begun: the largest first."""
TASKS = 3
_ROWS = (300, 200, 100)
_SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", IntegerType()))
_SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
_PROPERTIES = {
    "commit.retry.min-wait-ms": "1",
    "commit.retry.max-wait-ms": "2",
    # They were all made a moment ago.
    "self-optimizing.writers-first": "false",
}


def fragmented_table(catalog: Catalog, name: str, version: int = 2) -> Table:
    """Each partition has two data files, position deletes (in version 3 vectors) and equality deletes."""
    table = catalog.create_table(
        name, _SCHEMA, partition_spec=_SPEC, properties={"format-version": str(version), **_PROPERTIES}
    )
    parts = np.repeat(np.arange(TASKS), _ROWS)
    for first in (0, 1000):
        data = pa.table({"id": np.arange(len(parts)) + first, "part": pa.array(parts, pa.int32())})
        table = changes.apply(table, partial(changes.append, data=data))
    table = changes.apply(table, lambda t: changes.position_delete(t, "id in (1, 2, 301, 501)"))
    for part in range(TASKS):
        keys = pa.table({"id": pa.array([3, 303, 503, 1004], pa.int64())})
        table = changes.apply(table, partial(changes.equality_delete, keys=keys, partition=(part,)))
    return table


def name_begins(task: int, attempt: int | None = None) -> str:
    """How names of files begin that a task writes, or one attempt at it."""
    return f"{task:05}-" if attempt is None else f"{task:05}-{attempt}-"
