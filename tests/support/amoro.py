"""Keyed tables made by Apache Amoro (tests/data/mixed-iceberg): unpacked and opened, with the rows their maker reads."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Properties

from pyarctic.config import TableName
from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.write import read_blob
from pyarctic.tables import KeyedTable

_FIXTURES = Path(__file__).parents[1] / "data" / "mixed-iceberg"
_HOME = "moved-to"
NAMES = sorted(path.stem for path in (_FIXTURES / "expected").glob("*.json"))


class MovedIO(PyArrowFileIO):
    """The tables hold absolute paths under /tmp/wh; they are unpacked elsewhere."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(str(self.path(location)))

    def path(self, location: str) -> Path:
        return Path(location.removeprefix("file:").replace("/tmp/wh", str(self._home / "wh"), 1))


class CatalogIO(MovedIO):
    """The same for tables of a catalog, whose new files lie where they are."""

    def __init__(self, properties: Properties) -> None:
        super().__init__(Path(properties[_HOME]))
        self.properties = properties


@dataclass(frozen=True, slots=True, kw_only=True)
class AmoroTable:
    """A table as Amoro left it, and what Amoro said about it."""

    table: KeyedTable
    base: IcebergTable
    change: IcebergTable
    expected: Mapping[str, Any]
    io: MovedIO


def unpacked(name: str, folder: Path) -> AmoroTable:
    """Open one of `NAMES`, unpacked in an empty folder."""
    apply_patches()
    expected = json.loads((_FIXTURES / "expected" / f"{name}.json").read_text())
    with tarfile.open(_FIXTURES / "tables" / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    io = MovedIO(folder)
    base, change = (_loaded(io, f"{name}_{store}", expected[f"{store}_metadata"]) for store in ("base", "change"))
    table = KeyedTable(TableName(catalog="amoro", namespace=("fx",), table=name), base, change)
    return AmoroTable(table=table, base=base, change=change, expected=expected, io=io)


def adopted(name: str, folder: Path) -> AmoroTable:
    """The same in a catalog of its own, so that it can be changed."""
    found = unpacked(name, folder)
    how = {_HOME: str(folder), "py-io-impl": f"{__name__}.{CatalogIO.__name__}"}
    catalog = SqlCatalog("amoro", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri(), **how)
    catalog.create_namespace("fx")
    base, change = (_registered(catalog, store, found.io) for store in (found.base, found.change))
    table = KeyedTable(TableName(catalog="amoro", namespace=("fx",), table=name), base, change)
    return replace(found, table=table, base=base, change=change)


def _registered(catalog: SqlCatalog, store: IcebergTable, io: MovedIO) -> IcebergTable:
    """With a location where files can be written."""
    home = io.path(store.location())
    moved = home / "metadata" / "00000-moved.metadata.json"
    moved.write_text(store.metadata.model_copy(update={"location": home.as_uri()}).model_dump_json())
    return catalog.register_table(store.name(), moved.as_uri())


def _loaded(io: MovedIO, name: str, location: str) -> IcebergTable:
    with io.new_input(location).open() as stream:
        metadata = TableMetadataUtil.parse_raw(stream.read().decode())
    return IcebergTable(("fx", name), metadata, location, io, NoopCatalog("amoro"))


def texts(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Rows as texts that can be compared, with values as `expected` tells them."""
    return Counter(json.dumps({name: _plain(value) for name, value in row.items()}) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def sequences_for_amoro(metadata: TableMetadata, io: FileIO) -> dict[str, int]:
    """The rule by which the Java engines of the format read them."""
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and "optimized-sequence.exist" in snapshot.summary.additional_properties:
            (file,) = [file for file in metadata.statistics if file.snapshot_id == snapshot.snapshot_id]
            return dict(json.loads(read_blob(io, file.statistics_path, "optimized-sequence")))
        snapshot = metadata.snapshot_by_id(snapshot.parent_snapshot_id or -1)
    partitions = json.loads(metadata.properties.get("table.partition-properties", "{}"))
    return {path: int(values["max-txId"]) for path, values in partitions.items()}
