"""A table of orders by city, in a SQLite catalog that the command line finds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True, doc="the order"),
    NestedField(2, "city", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    identifier_field_ids=[1],
)
BY_CITY = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="city"))


def orders(first: int, cities: list[str | None]) -> pa.Table:
    when = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
    ]
    columns = [list(range(first, first + len(cities))), cities, [when] * len(cities)]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)], schema=pa.schema(fields))


def new_catalog(folder: Path) -> SqlCatalog:
    """The catalog `demo` with the database `shop`, and an `arctic.yaml` that declares it."""
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    uri = f"sqlite:///{warehouse}/catalog.db"
    catalog = SqlCatalog("demo", uri=uri, warehouse=f"file://{warehouse}")
    catalog.create_namespace("shop")
    text = f"catalogs:\n  demo: {{type: sql, uri: '{uri}', warehouse: 'file://{warehouse}'}}\n"
    (folder / "arctic.yaml").write_text(text, encoding="utf-8")
    return catalog
