"""Parts of commits that a test makes with Java's own API, out of files that PyArctic wrote."""

from __future__ import annotations

from typing import Any

from pyarctic.iceberg.write import NewFile
from tests.oracle.sharedtable import SharedTable


def java_data_file(shared: SharedTable, file: NewFile, partition: str = "") -> Any:
    """A data file that PyArctic wrote, as Java describes it."""
    spec = shared.oracle.java_table(shared.name).spec()
    builder = shared.oracle.java.org.apache.iceberg.DataFiles.builder(spec).withPath(file.path).withFormat("PARQUET")
    if partition:
        builder = builder.withPartitionPath(partition)
    return builder.withFileSizeInBytes(file.file_size_bytes).withRecordCount(file.record_count).build()


def java_position_deletes(shared: SharedTable, file: NewFile) -> Any:
    spec = shared.oracle.java_table(shared.name).spec()
    builder = shared.oracle.java.org.apache.iceberg.FileMetadata.deleteFileBuilder(spec).ofPositionDeletes()
    builder = builder.withPath(file.path).withFileSizeInBytes(file.file_size_bytes).withRecordCount(file.record_count)
    builder = builder.withFormat(file.file_format).withReferencedDataFile(file.referenced_data_file)
    if file.is_vector:
        builder = builder.withContentOffset(file.content_offset).withContentSizeInBytes(file.content_size_bytes)
    return builder.build()


def planned_by_java(shared: SharedTable, snapshot_id: int | None = None) -> list[Any]:
    """Java's scan tasks: data files with their deletes."""
    scan = shared.oracle.java_table(shared.name).newScan()
    tasks = (scan if snapshot_id is None else scan.useSnapshot(snapshot_id)).planFiles()
    found = []
    iterator = tasks.iterator()
    while iterator.hasNext():
        found.append(iterator.next())
    tasks.close()
    return found
