"""What PyIceberg lacks: a table's file list as a frame, the rules of deletes, and a reader that applies all of them.

Knows Iceberg's formats (metadata through PyIceberg, manifests, delete files, deletion vectors) and nothing of keyed
tables, optimizing or services. Works on any catalog and storage that PyIceberg opens.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarctic.iceberg.catalogs import catalog_names, load_table, open_catalog, reaching
    from pyarctic.iceberg.deletes import DeleteMatches, match_deletes
    from pyarctic.iceberg.filelist import CONTENT_KIND, FileList, changed_files, snapshot_by_id
    from pyarctic.iceberg.manifests import FILE_SCHEMA
    from pyarctic.iceberg.partitions import PartitionDecoder
    from pyarctic.iceberg.reading import METADATA_COLUMNS, TableView
    from pyarctic.iceberg.scan import Scan

__all__ = [
    "CONTENT_KIND",
    "FILE_SCHEMA",
    "METADATA_COLUMNS",
    "DeleteMatches",
    "FileList",
    "PartitionDecoder",
    "Scan",
    "TableView",
    "catalog_names",
    "changed_files",
    "load_table",
    "match_deletes",
    "open_catalog",
    "reaching",
    "snapshot_by_id",
]

# Loaded when asked for: a worker process needs a few of them and is started often.
_PLACES = {
    "CONTENT_KIND": "filelist",
    "DeleteMatches": "deletes",
    "FILE_SCHEMA": "manifests",
    "FileList": "filelist",
    "METADATA_COLUMNS": "reading",
    "PartitionDecoder": "partitions",
    "Scan": "scan",
    "TableView": "reading",
    "catalog_names": "catalogs",
    "changed_files": "filelist",
    "load_table": "catalogs",
    "match_deletes": "deletes",
    "open_catalog": "catalogs",
    "reaching": "catalogs",
    "snapshot_by_id": "filelist",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
