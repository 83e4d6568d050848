"""One keyed table in the catalog of a test, `lake.db.t`: made, written to by others, and looked at."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table as IcebergTable

import pyarctic
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.iceberg.write import NewFile
from pyarctic.tables import ScanStore, Table
from pyarctic.tables.create import TableAdvice
from pyarctic.tables.format.change_columns import FILE_OFFSET
from pyarctic.tables.format.file_names import FileKind, parse_file_names
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.write.fanout import Fanout
from tests.support.integrity import leftovers, local, missing, untrue_totals

IDS = pa.schema([("id", pa.int64()), ("text", pa.string())])
CITIES = pa.schema([("id", pa.int64()), ("city", pa.string()), ("text", pa.string())])


def made(schema: pa.Schema = IDS, partition_by: tuple[str, ...] = (), **properties: str) -> KeyedTable:
    """Properties by the last part of their names: `made(target_size="1KB")`."""
    chosen = {f"self-optimizing.{name.replace('_', '-')}": value for name, value in properties.items()}
    chosen = {BASE_BUCKETS: "1", CHANGE_BUCKETS: "1", "commit.retry.min-wait-ms": "1"} | chosen
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableAdvice)
        created = pyarctic.create_table("lake.db.t", schema, ["id"], partition_by, chosen)
    assert isinstance(created, KeyedTable)
    return created


def opened() -> KeyedTable:
    table = pyarctic.table("lake.db.t")
    assert isinstance(table, KeyedTable)
    return table


def rows(**texts: str) -> pa.Table:
    """Of ids and texts: `rows(_1="a")`."""
    return pa.table({"id": [int(name[1:]) for name in texts], "text": [*texts.values()]}, schema=IDS)


def many(ids: range, text: str) -> pa.Table:
    return pa.table({"id": list(ids), "text": [*texts(ids, text).values()]}, schema=IDS)


def texts(ids: Iterable[int], text: str) -> dict[int, str]:
    """Texts that take about twenty bytes each, however they are encoded."""
    return {number: text + hashlib.md5(f"{text}{number}".encode()).hexdigest() for number in ids}


def cities(*values: tuple[int, str | None, str]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(CITIES.names, row, strict=True)) for row in values], schema=CITIES)


def read(store: ScanStore = "merged") -> dict[int, str]:
    scanned = opened().scan(store=store).to_arrow().to_pylist()
    found = {row["id"]: row["text"] for row in scanned}
    assert len(found) == len(scanned)
    return found


def commit(
    table: KeyedTable, transaction: int, data: pa.Table, kind: FileKind = "I", *, first: int = 1, mask: int = 0
) -> None:
    """Change files of a transaction, as another engine writes them."""
    store = table.change_store
    with Fanout(store.view, mask=mask, transaction_id=transaction, extra_fields=(FILE_OFFSET,)) as out:
        (batch,) = data.to_batches()
        out.write(batch, out.locate(batch), {kind: pa.array(range(first, first + batch.num_rows))})
    store.commit(Change(start=store.view.snapshot_id, add=tuple(out.files)))


def add_file(store: Table, data: pa.Table, name: str, partition: tuple[Any, ...] = ()) -> str:
    """A file of this name, with the columns of the store by their ids, whatever is in them."""
    fields = [*store.schema.fields, FILE_OFFSET]
    ids = {field.name: str(field.field_id) for field in fields}
    schema = pa.schema([f.with_metadata({"PARQUET:field_id": ids[f.name]}) for f in data.schema])
    path = f"{store.location}/data/{name}.parquet"
    Path(local(path)).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data.cast(schema), local(path))
    file = NewFile(
        content=0,
        path=path,
        file_format="PARQUET",
        spec_id=0,
        partition=partition,
        record_count=data.num_rows,
        file_size_bytes=Path(local(path)).stat().st_size,
    )
    store.commit(Change(start=store.view.snapshot_id, add=(file,)))
    return path


def base_files() -> pl.DataFrame:
    return parse_file_names(opened().file_list.frame(), "base")


def data_nodes() -> set[int]:
    return set(base_files().filter(IS_DATA)["node_id"])


def unmerged() -> int:
    return opened()._pending().height


def faults() -> list[str]:
    """What is missing, left over or wrong in the totals of either store."""
    table = opened()
    stores = (table._loaded, table.change_store._loaded)
    return [text for store in stores for fault in (missing, leftovers, untrue_totals) for text in fault(store)]


def expire(store: IcebergTable) -> None:
    """All snapshots but the last one."""
    current = store.metadata.current_snapshot_id
    old = [snapshot.snapshot_id for snapshot in store.metadata.snapshots if snapshot.snapshot_id != current]
    store.maintenance.expire_snapshots().by_ids(old).commit()
