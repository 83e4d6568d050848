"""Gaps of PyIceberg 0.12 that are closed here, once, for every catalog. Each goes when a test says PyIceberg closed it.

* Statistics files: PyIceberg allows two blob types and refuses to load metadata that lists any other. The specification
  lets writers add their own, and tables shared with the mixed-iceberg format have them.
"""

from __future__ import annotations

from pydantic import BaseModel
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.table import CommitTableRequest, CommitTableResponse
from pyiceberg.table.metadata import TableMetadataV1, TableMetadataV2, TableMetadataV3, TableMetadataWrapper
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate

_MODELS: tuple[type[BaseModel], ...] = (  # each after those it is made of
    BlobMetadata,
    StatisticsFile,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
    TableMetadataWrapper,
    SetStatisticsUpdate,
    TableResponse,
    CommitTableRequest,
    CommitTableResponse,
)


def allow_any_statistics() -> None:
    """Widen the type of statistics blobs to any string, in the models that were built with the narrow one."""
    field = BlobMetadata.model_fields["type"]
    if field.annotation is str:
        return
    field.annotation = str
    for model in _MODELS:
        model.model_rebuild(force=True)
