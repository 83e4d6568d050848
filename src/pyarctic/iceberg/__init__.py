"""What PyIceberg lacks: a table's file list as a frame, the rules of deletes, and a reader that applies all of them.

Knows Iceberg's formats (metadata through PyIceberg, manifests, delete files, deletion vectors) and nothing of keyed
tables, optimizing or services. Works on any catalog and storage that PyIceberg opens.
"""

from pyarctic.iceberg.catalogs import catalog_names, load_table, open_catalog, reaching
from pyarctic.iceberg.deletes import DeleteMatches, match_deletes
from pyarctic.iceberg.filelist import CONTENT_KIND, FileList, changed_files, snapshot_by_id
from pyarctic.iceberg.manifests import FILE_SCHEMA
from pyarctic.iceberg.partitions import PartitionDecoder
from pyarctic.iceberg.reading import METADATA_COLUMNS, TableView
from pyarctic.iceberg.scan import Scan, scan

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
    "scan",
    "snapshot_by_id",
]
