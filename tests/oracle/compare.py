"""Does PyArctic read what Iceberg Java reads? Rows are compared as multisets of Python values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

import pyarctic
from pyarctic.tables import Table
from tests.oracle.session import Oracle


def arctic_table(oracle: Oracle, table: str) -> Table:
    """The oracle's table as PyArctic opens it, over the same SQLite file."""
    share_catalog(oracle)
    return pyarctic.table(f"{oracle.name}.{table}")


def share_catalog(oracle: Oracle) -> None:
    """Make the oracle's catalog known to PyArctic, under the same name."""
    properties = {
        "type": "sql",
        "uri": str(oracle.catalog.engine.url),
        "warehouse": oracle.catalog.properties["warehouse"],
    }
    pyarctic.catalog(oracle.name, **properties)


def multiset(rows: pa.Table) -> Counter[str]:
    return Counter(repr(_plain(row)) for row in rows.to_pylist())


def assert_same_rows(
    oracle: Oracle, table: str, *, where: str | None = None, snapshot_id: int | None = None, ref: str | None = None
) -> pa.Table:
    """Compare one state of a table, or the rows a condition selects from it; gives PyArctic's rows."""
    java = oracle.rows(table, snapshot_id=snapshot_id, ref=ref)
    if where is not None:
        java = oracle.sql(f"select * from {oracle.name}.{table} where {where}").toArrow()
    opened = arctic_table(oracle, table)
    scan = opened.scan(where=where, snapshot_id=snapshot_id, ref=ref)
    ours = scan.to_arrow()
    assert ours.schema.names == java.schema.names
    mine, theirs = multiset(ours), multiset(java)
    assert mine == theirs, f"only ours: {list(mine - theirs)[:3]}, only Java's: {list(theirs - mine)[:3]}"
    assert scan.count() == java.num_rows
    return ours


def assert_same_history(oracle: Oracle, table: str) -> None:
    """Compare the current state and every snapshot, branch and tag there is."""
    assert_same_rows(oracle, table)
    opened = arctic_table(oracle, table)
    snapshots = opened.snapshots()
    for snapshot_id in snapshots["snapshot_id"]:
        assert_same_rows(oracle, table, snapshot_id=snapshot_id)
    for ref in snapshots["refs"].explode().drop_nulls():
        assert_same_rows(oracle, table, ref=ref)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _plain(inner)) for name, inner in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
