"""Patches for PyIceberg 0.12, applied once for every catalog. Tests show when PyIceberg no longer needs one of them.

* Statistics files: PyIceberg allows two blob types and refuses to load metadata that lists any other. The specification
  lets writers add their own, and tables shared with the mixed-iceberg format have them.
* Format version 3: PyIceberg does not write its metadata files, starts row ids with null instead of zero, and does not
  notice that a snapshot's sequence number was taken by a commit to another branch.
* A commit deep-copies the complete metadata, although snapshots and log entries never change: with thousands of them this
  takes most of the time.
* Hive: the lock has no heartbeat, so a slow commit may lose it and overwrite another one. The metastore is given the
  expected metadata file (HIVE-26882: Hive 2.3.10, 4.0 and later; older versions ignore it).
* Conflicting commits in catalogs whose client writes the metadata file (sql, glue, hive) leave that file behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from pydantic import BaseModel
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableRequest, CommitTableResponse, StagedTable
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV2, TableMetadataV3, TableMetadataWrapper
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import AddSnapshotUpdate, SetStatisticsUpdate, _apply_table_update
from pyiceberg.typedef import IcebergBaseModel

from pyarctic.iceberg.storage import remove_if_incomplete

_MODELS: tuple[type[BaseModel], ...] = (  # each after the models it contains
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
_staged: ContextVar[list[str] | None] = ContextVar("staged", default=None)


def apply_patches() -> None:
    """Apply the patches, unless they are applied already."""
    if BlobMetadata.model_fields["type"].annotation is str:
        return
    BlobMetadata.model_fields["type"].annotation = str
    TableMetadataV3.model_fields["next_row_id"].default = 0
    for model in _MODELS:
        model.model_rebuild(force=True)
    TableMetadataV3.model_dump_json = IcebergBaseModel.model_dump_json  # type: ignore[method-assign]
    for model in (Snapshot, SnapshotLogEntry, MetadataLogEntry):
        model.__deepcopy__ = lambda self, memo=None: self  # type: ignore[method-assign]  # noqa: ARG005
    _patch_sequence_number_check()
    _patch_metadata_staging()


def apply_hive_patch() -> None:
    """Apply the patch for Hive if its client is loaded: it needs an optional package."""
    hive = sys.modules.get("pyiceberg.catalog.hive")
    if hive is None or hasattr(hive, "_expects_metadata"):
        return
    hive._expects_metadata = True  # type: ignore[attr-defined]
    client = hive.Client
    alter = client.alter_table_with_environment_context

    @wraps(alter)
    def alter_if_unchanged(self: Any, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any) -> Any:
        previous = (new_tbl.parameters or {}).get("previous_metadata_location")
        if previous is None:
            return alter(self, dbname, tbl_name, new_tbl, environment_context)
        environment_context.properties |= {
            "expected_parameter_key": "metadata_location",
            "expected_parameter_value": previous,
        }
        try:
            return alter(self, dbname, tbl_name, new_tbl, environment_context)
        except hive.MetaException as cause:
            if "modified" in str(cause):
                msg = f"{dbname}.{tbl_name} was changed by another commit although it was locked"
                raise CommitFailedException(msg) from cause
            raise

    client.alter_table_with_environment_context = alter_if_unchanged


@contextmanager
def staged_metadata() -> Iterator[list[str]]:
    """Collect the metadata files that a catalog's client writes within the block, before it commits them. If one cannot be
    written, `Unavailable` is raised; the catalog was not called then."""
    paths: list[str] = []
    token = _staged.set(paths)
    try:
        yield paths
    finally:
        _staged.reset(token)


def _patch_sequence_number_check() -> None:
    apply = _apply_table_update.dispatch(AddSnapshotUpdate)

    @_apply_table_update.register(AddSnapshotUpdate)
    def _(update: AddSnapshotUpdate, base_metadata: TableMetadata, context: Any) -> TableMetadata:
        number = update.snapshot.sequence_number
        taken = -1 if isinstance(base_metadata, TableMetadataV1) else base_metadata.last_sequence_number
        if number is not None and number <= taken:
            msg = f"sequence number {number} was taken: the table is at {taken}"
            raise ValueError(msg)
        applied: TableMetadata = apply(update, base_metadata, context)
        return applied


def _patch_metadata_staging() -> None:
    stage = MetastoreCatalog._update_and_stage_table

    @wraps(stage)
    def stage_and_record(self: MetastoreCatalog, *args: Any, **kwargs: Any) -> StagedTable:
        table = stage(self, *args, **kwargs)
        if (paths := _staged.get()) is not None:
            paths.append(table.metadata_location)
        return table

    write = MetastoreCatalog._write_metadata

    def write_or_remove(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        if _staged.get() is None:
            write(metadata, io, metadata_path)
        else:
            with remove_if_incomplete(io, metadata_path):
                write(metadata, io, metadata_path)

    MetastoreCatalog._update_and_stage_table = stage_and_record  # type: ignore[method-assign]
    MetastoreCatalog._write_metadata = staticmethod(write_or_remove)  # type: ignore[method-assign]
