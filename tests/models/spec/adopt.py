"""Files that PyArctic wrote, as entries for the specification's writer to commit."""

from __future__ import annotations

from pyarctic.iceberg.write import NewFile
from tests.models.spec.table import SpecFile


def adopted(file: NewFile) -> SpecFile:
    return SpecFile(
        content=file.content,
        path=file.path,
        records=file.record_count,
        size=file.file_size_bytes,
        spec_id=file.spec_id,
        partition=file.partition,
        format=file.file_format,
        equality_ids=file.equality_ids or None,
        referenced=file.referenced_data_file,
        offset=file.content_offset,
        length=file.content_size_bytes,
        lower=file.metrics.lower_bounds,
        upper=file.metrics.upper_bounds,
        nulls=file.metrics.null_counts,
        values=file.metrics.value_counts,
        nans=file.metrics.nan_counts,
    )
