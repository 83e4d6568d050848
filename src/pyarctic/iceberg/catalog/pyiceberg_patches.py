"""Patches for PyIceberg 0.12, applied once for every catalog. Tests show when PyIceberg no longer needs one of them.

* Statistics files: PyIceberg allows two blob types and refuses to load metadata that lists any other. The specification
  lets writers add their own, and tables shared with the mixed-iceberg format have them.
* Format version 3: PyIceberg does not write its metadata files, starts row ids with null instead of zero, and does not
  notice that a snapshot's sequence number was taken by a commit to another branch.
* Types of version 3: PyIceberg does not know `variant`. Around the parameters of `geometry` and `geography` it expects and
  writes quotes, which the specification does not have.
* A commit deep-copies the complete metadata, although snapshots and log entries never change: with thousands of them this
  takes most of the time.
* Hive: the lock has no heartbeat, so a slow commit may lose it and overwrite another one. The metastore is given the
  expected metadata file (HIVE-26882: Hive 2.3.10, 4.0 and later; older versions ignore it).
* S3: PyIceberg's FileIO takes three or more requests to read or write a small object, and deleting one leaves an empty
  object in the place of its folder. Ours takes one (`iceberg/s3_file_io.py`).
* Conflicting commits in catalogs whose client writes the metadata file (sql, glue, hive) leave that file behind. Its name
  tells the commit it is of (`iceberg/write/commit_names.py`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import FunctionType
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

from pydantic import BaseModel, Field
from pyiceberg import types
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import SCHEMA_TO_FILE_IO, FileIO
from pyiceberg.table import CommitTableRequest, CommitTableResponse, StagedTable
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV2, TableMetadataV3, TableMetadataWrapper
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import AddSnapshotUpdate, SetStatisticsUpdate, _apply_table_update
from pyiceberg.typedef import IcebergBaseModel, TableVersion

from pyarctic.iceberg.storage import remove_if_incomplete

_MODELS: tuple[type[BaseModel], ...] = (  # each after the models it contains
    BlobMetadata,
    StatisticsFile,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
    TableMetadataWrapper,
    SetStatisticsUpdate,
    CommitTableRequest,
    CommitTableResponse,
)
_GEOMETRY = re.compile(r"geometry\s*(?:\(\s*([^)]*?)\s*\))?$")
_GEOGRAPHY = re.compile(r"geography\s*(?:\(\s*([^,)]*?)\s*(?:,\s*([^,)]*?)\s*)?\))?$")
_S3_FILE_IO = "pyarctic.iceberg.s3_file_io.S3FileIO"
_METADATA_ID = re.compile(r"[0-9a-f-]{36}(?=\.metadata\.json$)")
_staged: ContextVar[_Staged | None] = ContextVar("staged", default=None)


class VariantType(types.PrimitiveType):
    """Iceberg's `variant`: semi-structured values."""

    root: Literal["variant"] = Field(default="variant")

    def minimum_format_version(self) -> TableVersion:
        return 3


def apply_patches() -> None:
    """Apply the patches, unless they are applied already."""
    if BlobMetadata.model_fields["type"].annotation is str:
        return
    BlobMetadata.model_fields["type"].annotation = str
    TableMetadataV3.model_fields["next_row_id"].default = 0
    # The client of REST catalogs is not imported for it; if it is imported later, its model has what is changed here.
    rest = sys.modules.get("pyiceberg.catalog.rest")
    for model in (*_MODELS, *((rest.TableResponse,) if rest else ())):
        model.model_rebuild(force=True)
    TableMetadataV3.model_dump_json = IcebergBaseModel.model_dump_json  # type: ignore[method-assign]
    for model in (Snapshot, SnapshotLogEntry, MetadataLogEntry):
        model.__deepcopy__ = lambda self, memo=None: self  # type: ignore[method-assign]  # noqa: ARG005
    for scheme in ("s3", "s3a", "s3n", "oss"):  # unless a catalog names another with `py-io-impl`
        SCHEMA_TO_FILE_IO[scheme] = [_S3_FILE_IO, *SCHEMA_TO_FILE_IO[scheme]]
    _patch_types()
    _patch_sequence_number_check()


def apply_catalog_patches() -> None:
    """Apply the patches for clients of catalogs, as far as they are loaded. Workers have none."""
    if (catalogs := sys.modules.get("pyiceberg.catalog")) is not None:
        _patch_metadata_staging(catalogs.MetastoreCatalog)
    _patch_hive()


def _patch_hive() -> None:
    hive = sys.modules.get("pyiceberg.catalog.hive")
    if hive is None or hasattr(hive, "_expects_metadata"):
        return
    hive._expects_metadata = True  # type: ignore[attr-defined]
    hive.HIVE_PRIMITIVE_TYPES[VariantType] = "unknown"  # as Iceberg Java does
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


class _Staged(NamedTuple):
    paths: list[str]
    new_id: Callable[[], UUID]


@contextmanager
def staged_metadata(new_id: Callable[[], UUID] = uuid4) -> Iterator[list[str]]:
    """Collect the metadata files that a catalog's client writes within the block, before it commits them. Each gets an id of
    its own into its name. If one cannot be written, `Unavailable` is raised; the catalog was not called then."""
    staged = _Staged([], new_id)
    token = _staged.set(staged)
    try:
        yield staged.paths
    finally:
        _staged.reset(token)


def _patch_types() -> None:
    # Dozens of models have these functions compiled in. So their code is replaced; it finds its names in PyIceberg's module.
    recognize = types.IcebergType.handle_primitive_type.__func__
    module = vars(types)
    module["_recognize_others"] = FunctionType(recognize.__code__, module)
    module["VariantType"] = VariantType
    recognize.__code__ = _recognize_variant.__code__
    module["GEOMETRY_REGEX"], module["GEOGRAPHY_REGEX"] = _GEOMETRY, _GEOGRAPHY
    for geo_type, write in ((types.GeometryType, _write_geometry), (types.GeographyType, _write_geography)):
        geo_type.__str__ = write  # type: ignore[method-assign]
        geo_type.ser_model.__code__ = _write_as_text.__code__


def _recognize_variant(cls: Any, v: Any, handler: Any) -> Any:
    return VariantType() if v == "variant" else _recognize_others(cls, v, handler)  # type: ignore[name-defined]  # noqa: F821


def _write_as_text(self: Any) -> str:
    return str(self)


def _write_geometry(self: types.GeometryType) -> str:
    return "geometry" if self.crs == types.DEFAULT_GEOMETRY_CRS else f"geometry({self.crs})"


def _write_geography(self: types.GeographyType) -> str:
    if self.algorithm != types.DEFAULT_GEOGRAPHY_ALGORITHM:
        return f"geography({self.crs}, {self.algorithm})"
    return "geography" if self.crs == types.DEFAULT_GEOGRAPHY_CRS else f"geography({self.crs})"


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


def _patch_metadata_staging(catalog: Any) -> None:
    stage = catalog._update_and_stage_table
    if hasattr(stage, "__wrapped__"):
        return

    @wraps(stage)
    def stage_and_record(self: Any, *args: Any, **kwargs: Any) -> StagedTable:
        table: StagedTable = stage(self, *args, **kwargs)
        if (staged := _staged.get()) is not None:
            table.metadata_location = _METADATA_ID.sub(str(staged.new_id()), table.metadata_location)
            staged.paths.append(table.metadata_location)
        return table

    write = catalog._write_metadata

    def write_or_remove(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        if _staged.get() is None:
            write(metadata, io, metadata_path)
        else:
            with remove_if_incomplete(io, metadata_path):
                write(metadata, io, metadata_path)

    catalog._update_and_stage_table = stage_and_record
    catalog._write_metadata = staticmethod(write_or_remove)
