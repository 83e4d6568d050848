"""Creating and dropping tables. A keyed table is two Iceberg tables, created and dropped together."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import Transform, YearTransform, parse_transform
from pyiceberg.types import NestedField

from pyarctic.config import TableName
from pyarctic.errors import ArcticError, Rejected, UsageError, about
from pyarctic.iceberg import remove_quietly
from pyarctic.iceberg.catalog import translate_catalog_errors
from pyarctic.tables.evolve import parse_type
from pyarctic.tables.format.change_columns import CHANGE_COLUMNS
from pyarctic.tables.format.key_hash import check_key_type
from pyarctic.tables.format.store_names import change_store_name
from pyarctic.tables.format.store_properties import (
    CHANGE_STORE,
    TableKind,
    change_store_identifier,
    check_user_properties,
    kind_of,
    required_key,
    store_properties,
)

MIXED_ICEBERG, ICEBERG = TABLE_FORMATS = ("mixed-iceberg", "iceberg")
"""The format of keyed and unkeyed tables, and that of native ones."""
EXISTS = "exists"
_TRANSFORMS = ("bucket", "truncate", "year", "month", "day", "hour")
_CALLER = 5
"""The caller of `pyarctic.create_table`, as seen from `_warn`."""
_SUFFIX = {"bucket": "bucket", "truncate": "trunc"}


class TableAdvice(UserWarning):
    """A warning about a table definition that works, but may have unexpected effects."""


@dataclass(frozen=True, kw_only=True)
class TableDefinition:
    """What a new table is to be like."""

    schema: pa.Schema | Schema
    primary_key: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    format: str = MIXED_ICEBERG
    format_version: int | None = None
    """None: 2."""

    def check_format(self) -> None:
        """Refuse formats and versions that do not exist, or do not go together."""
        if self.format not in TABLE_FORMATS:
            raise UsageError(f"unknown table format: {self.format!r}", hint=f"One of: {', '.join(TABLE_FORMATS)}.")
        is_native = self.format == ICEBERG
        if is_native and self.primary_key:
            raise UsageError(
                f'a table with a primary key has the format "{MIXED_ICEBERG}", not "{ICEBERG}"',
                hint="Leave [[primary_key]] out, or [[format]].",
            )
        versions = (1, 2, 3) if is_native else (2,)
        if self.format_version is not None and self.format_version not in versions:
            raise UsageError(
                f"format version {self.format_version!r} does not exist for tables of the format {self.format}",
                hint=f"One of: {', '.join(map(str, versions))}."
                + ("" if is_native else f' Others need format="{ICEBERG}", which has no primary key.'),
            )

    @property
    def kind(self) -> TableKind:
        return "native" if self.format == ICEBERG else "keyed" if self.primary_key else "unkeyed"


def create_stores(catalog: Catalog, name: TableName, definition: TableDefinition) -> None:
    """Create the stores of a new table; if one of them fails, none is left. If the table exists, the reason of `Rejected` is
    `EXISTS`."""
    primary_key, properties = definition.primary_key, definition.properties
    with about(table=str(name)):
        definition.check_format()
        version = definition.format_version or 2
        schema = _to_fresh_schema(definition.schema, version, is_native=definition.kind == "native")
        _check_key(schema, primary_key)
        check_user_properties(properties)
        schema = required_key(schema, primary_key) if primary_key else schema
        spec = partition_spec(schema, definition.partition_by)
        change = (*name.namespace, change_store_name(name.table, catalog.properties)) if primary_key else None
        with translate_catalog_errors(name.catalog, str(name)):
            _ensure_namespace(catalog, name.namespace)
            if catalog.table_exists(name.identifier):  # some catalogs notice it only after they wrote the metadata
                raise _already_exists(name, name.identifier)
            if change is not None and catalog.table_exists(change):
                raise _already_exists(name, change)
            _warn(schema, spec, primary_key)
            if definition.kind == "native":
                _create(catalog, name, name.identifier, schema, spec, {**properties, "format-version": str(version)})
                return
            base_properties = store_properties("base", properties, primary_key, change)
            base = _create(catalog, name, name.identifier, schema, spec, base_properties)
            if change is not None:
                try:
                    change_properties = store_properties("change", properties, primary_key, change)
                    _create(catalog, name, change, schema, spec, change_properties)
                except BaseException:
                    _remove_created(catalog, base)
                    raise


def _remove_created(catalog: Catalog, base: IcebergTable) -> None:
    """Drop a table that was created just now, and remove its metadata file."""
    catalog.drop_table(base.name())
    remove_quietly(base.io, [base.metadata_location])


def drop_stores(catalog: Catalog, base: IcebergTable, *, purge: bool) -> None:
    """Drop the stores of a table; `purge` removes their files, too."""
    drop = _purge if purge else _drop
    change = base.metadata.properties.get(CHANGE_STORE)
    drop(catalog, base)
    if change is not None and kind_of(base.metadata.properties) == "keyed":
        identifier = change_store_identifier(base.metadata.properties)
        if catalog.table_exists(identifier):
            drop(catalog, catalog.load_table(identifier))


def _drop(catalog: Catalog, store: IcebergTable) -> None:
    catalog.drop_table(store.name())


def _purge(catalog: Catalog, store: IcebergTable) -> None:
    if not isinstance(catalog, MetastoreCatalog):  # the catalog service does it
        catalog.purge_table(store.name())
        return
    # PyIceberg does not purge for Hive, though it would work, and never removes statistics.
    MetastoreCatalog.purge_table(catalog, store.name())
    remove_quietly(store.io, [file.statistics_path for file in store.metadata.statistics])


def _to_fresh_schema(schema: pa.Schema | Schema, format_version: Any, *, is_native: bool) -> Schema:
    if isinstance(schema, pa.Schema):
        try:
            schema = Catalog._convert_schema_if_needed(schema, format_version)
        except (ValueError, TypeError, UnsupportedPyArrowTypeException) as cause:
            raise UsageError(f"the schema has a type that Iceberg does not support: {cause}") from cause
    if not isinstance(schema, Schema):
        raise UsageError(
            f"a schema is a pyarrow.Schema or a pyiceberg Schema, not {type(schema).__name__}",
            hint='Write it like: pa.schema({"id": pa.int64(), "city": pa.string()}), with `import pyarrow as pa`.',
        )
    if not schema.fields:
        raise UsageError("the schema has no columns")
    if not is_native and (reserved := [field.name for field in schema.fields if field.name in CHANGE_COLUMNS]):
        raise UsageError(f"column {reserved[0]} belongs to the change store", hint="Rename it.", column=reserved[0])
    return assign_fresh_schema_ids(schema)


def _check_key(schema: Schema, primary_key: Sequence[str]) -> None:
    if isinstance(primary_key, str):
        raise UsageError(f"primary_key is a list of columns, not the text {primary_key!r}", hint=f"[{primary_key!r}]")
    fields = {field.name: field for field in schema.fields}
    for name in primary_key:
        if name not in fields:
            hint = f"{_similar(name, fields)}Columns: {', '.join(fields)}."
            raise UsageError(f"key column {name!r} is not in the schema", hint=hint, column=name)
        if "," in name:
            raise UsageError(f"a key column cannot have a comma in its name: {name!r}", column=name)
        check_key_type(fields[name])
    if len(set(primary_key)) < len(primary_key):
        raise UsageError(f"a column is twice in the primary key: {', '.join(primary_key)}")


def partition_spec(schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    """A partition spec from texts such as `region`, `day(ts)`, `bucket(16, id)`."""
    if isinstance(partition_by, str):
        raise UsageError(f"partition_by is a list, not the text {partition_by!r}", hint=f"[{partition_by!r}]")
    fields = []
    for number, text in enumerate(partition_by):
        field, transform, name = _parse_partition_field(schema, text)
        fields.append(PartitionField(field.field_id, PARTITION_FIELD_ID_START + number, transform, name))
    if len({field.name for field in fields}) < len(fields):
        raise UsageError(f"two partition fields have one name: {', '.join(partition_by)}")
    return PartitionSpec(*fields)


def _parse_partition_field(schema: Schema, text: str) -> tuple[NestedField, Transform[Any, Any], str]:
    match = re.fullmatch(r"\s*(\w+)s?\s*\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*(?:,\s*(\d+)\s*)?\)\s*", text)
    function, width, column = None, None, text.strip()
    if match:
        function, column = match[1].lower().removesuffix("s"), match[3]
        width = match[2] or match[4]
    field = next((field for field in schema.fields if field.name == column), None)
    if field is None:
        raise UsageError(
            f"no column to partition by: {text!r}",
            hint=f"Write a column, or day(column), bucket(16, column); columns: {', '.join(f.name for f in schema.fields)}.",
        )
    if function is None:
        return field, parse_transform("identity"), column
    if function not in _TRANSFORMS or (function in _SUFFIX) != (width is not None):
        raise UsageError(
            f"unknown partition transform: {text!r}",
            hint="One of: column, year(column), month(…), day(…), hour(…), bucket(16, …), truncate(10, …).",
        )
    transform = parse_transform(f"{function}[{width}]" if width else function)
    if not transform.can_transform(field.field_type):
        names = [other.name for other in schema.fields if transform.can_transform(other.field_type)]
        raise UsageError(
            f"{function} does not work on column {column!r} of type {field.field_type}",
            hint=f"It works on: {', '.join(names) or 'no column of this table'}.",
            column=column,
        )
    return field, transform, f"{column}_{_SUFFIX.get(function, function)}"


def _warn(schema: Schema, spec: PartitionSpec, primary_key: Sequence[str]) -> None:
    outside = sorted(
        {name for field in spec.fields if (name := schema.find_column_name(field.source_id)) and name not in primary_key}
    )
    if primary_key and outside:
        warnings.warn(
            f"partition column {', '.join(outside)} is not part of the primary key: a key is unique within its partition. "
            "If rows move between partitions, write their before-images (mode cdc), or use across_partitions=True.",
            TableAdvice,
            stacklevel=_CALLER,
        )
    if primary_key and any(isinstance(field.transform, YearTransform) for field in spec.fields):
        warnings.warn(
            "connectors of the format for Flink, Spark and Trino misread which changes are merged in partitions by year, "
            "and show merged changes twice. Partition by month or day if they read the table.",
            TableAdvice,
            stacklevel=_CALLER,
        )


def _ensure_namespace(catalog: Catalog, namespace: tuple[str, ...]) -> None:
    if not catalog.namespace_exists(namespace):
        try:
            catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:  # another process was faster
            return


def _create(
    catalog: Catalog,
    name: TableName,
    identifier: tuple[str, ...],
    schema: Schema,
    spec: PartitionSpec,
    properties: dict[str, str],
) -> IcebergTable:
    """Create a store of the table `name`."""
    try:
        return catalog.create_table(identifier, schema, partition_spec=spec, properties=properties)
    except TableAlreadyExistsError as cause:
        raise _already_exists(name, identifier) from cause
    except ArcticError:
        raise
    except ValueError as cause:
        raise UsageError(str(cause)) from cause


def _already_exists(name: TableName, store: tuple[str, ...]) -> Rejected:
    if store != name.identifier:
        return Rejected(
            f"a table {'.'.join(store)} exists already, where the changes of {name} would go",
            hint="Drop it, or choose another name.",
        )
    hint = "Drop it, choose another name, or create it only if it does not exist: [[if_not_exists=True]]."
    return Rejected(f"table {name} exists already", hint=hint, reason=EXISTS)


def schema_of(columns: Sequence[tuple[str, str, bool]]) -> Schema:
    """A schema from columns: name, type such as `long` or `decimal(10, 2)`, and whether it is required."""
    names = [name for name, _, _ in columns]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"column {duplicate!r} is there twice", hint="Rename one of them.", column=duplicate)
    return Schema(
        *(
            NestedField(number, name, parse_type(type_), required=required)
            for number, (name, type_, required) in enumerate(columns, 1)
        )
    )


def _similar(name: str, known: Iterable[str]) -> str:
    similar = get_close_matches(name, list(known), n=1)
    return f"Did you mean {similar[0]}? " if similar else ""
