"""Schema changes on both stores of a table: Base first, then the change store, which catches up after a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import CommitFailedException, ResolveError, ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.types import IcebergType, NestedField

from pyarctic.errors import Conflict, Damaged, UsageError
from pyarctic.iceberg.commit import RetryPolicy
from pyarctic.iceberg.read import arrow_type
from pyarctic.tables.format.change_columns import CHANGE_COLUMNS

_FOREIGN_TYPES = {
    **dict.fromkeys(("bigint", "int64"), "long"),
    **dict.fromkeys(("integer", "int32", "smallint", "tinyint"), "int"),
    **dict.fromkeys(("text", "varchar", "char", "str"), "string"),
    **dict.fromkeys(("numeric", "number"), "decimal(p, s)"),
    **dict.fromkeys(("real", "float32"), "float"),
    "float64": "double",
    "bool": "boolean",
    "datetime": "timestamp",
    "bytes": "binary",
}
"""What the types of SQL and of Arrow are called in Iceberg."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """A change of a schema. Types are Iceberg types, or texts such as `long`, `decimal(10, 2)`."""

    add: Mapping[str, IcebergType | str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    widen: Mapping[str, IcebergType | str] = field(default_factory=dict)
    optional: Sequence[str] = ()
    """Columns that become optional."""
    describe: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The existing columns that are changed."""
        return [*self.drop, *self.rename, *self.widen, *self.optional, *self.describe]

    def check(self, keys: Sequence[str]) -> None:
        """Refuse empty changes, changes of key columns, and reserved names."""
        if not any((self.add, self.drop, self.rename, self.widen, self.optional, self.describe)):
            raise UsageError(
                "nothing is to be changed",
                hint="Give [[add]], [[drop]], [[rename]], [[widen]], [[optional]] or [[describe]].",
            )
        touched = [name for name in keys if name in {*self.drop, *self.rename, *self.optional, *self.widen}]
        if touched:
            raise UsageError(
                f"key column {touched[0]!r} cannot be dropped, renamed, widened or made optional",
                hint="Rows are found by the key; create a new table to change it.",
                column=touched[0],
            )
        if reserved := [name for name in (*self.add, *self.rename.values()) if name in CHANGE_COLUMNS]:
            raise UsageError(f"column {reserved[0]} belongs to the change store", hint="Choose another name.")


def evolve(table: IcebergTable, evolution: Evolution) -> None:
    """Commit a new schema. If another commit came first, the change is made to the newest one."""
    refusal: CommitFailedException | None = None
    for _ in RetryPolicy.of(table.metadata).races(lambda: table.metadata_location):
        try:
            _update_schema(table, evolution)
        except CommitFailedException as error:
            refusal = error
            table.refresh()
        else:
            return
    raise Conflict(f"the catalog refused the new schema: {refusal}", hint="Nothing was changed. Try again.") from refusal


def _update_schema(table: IcebergTable, evolution: Evolution) -> None:
    try:
        with table.update_schema() as update:
            for name, type_ in evolution.add.items():
                update.add_column(name, parse_type(type_))
            for name in evolution.drop:
                update.delete_column(name)
            for name, new in evolution.rename.items():
                update.rename_column(name, new)
            for name, type_ in evolution.widen.items():
                update.update_column(name, field_type=parse_type(type_))
            for name in evolution.optional:
                update.make_column_optional(name)
            for name, text in evolution.describe.items():
                update.update_column(name, doc=text)
    except (ValueError, TypeError, ValidationError, ResolveError) as cause:
        names = [field.name for field in table.schema().fields]
        unknown = next((name for name in evolution.columns if name in str(cause) and name not in names), None)
        similar = get_close_matches(unknown, names, n=1) if unknown else []
        hint = (f"Did you mean {similar[0]}? " if similar else "") + f"Columns: {', '.join(names)}."
        message = f"no such column: {unknown}" if unknown else f"the schema cannot be changed so: {cause}"
        raise UsageError(message, hint=hint) from cause


def parse_type(type_: IcebergType | str) -> IcebergType:
    """An Iceberg type, given as such or as text."""
    try:
        field = NestedField.model_validate({"id": 1, "name": "x", "type": type_, "required": False})
    except (PydanticError, ValidationError, ValueError, TypeError) as cause:
        meant = _FOREIGN_TYPES.get(str(type_).partition("(")[0].strip().lower())
        raise UsageError(
            f"unknown type: {type_!r}",
            hint=(f"Did you mean {meant}? " if meant else "")
            + "One of: boolean, int, long, float, double, decimal(p, s), date, time, timestamp, timestamptz, string, "
            "uuid, fixed[n], binary.",
        ) from cause
    arrow_type(field.field_type)  # refuses a type that could not be written afterwards
    return field.field_type


def are_equal(left: Schema, right: Schema) -> bool:
    """Whether two schemas have the same columns and keys; their schema ids may differ."""
    return left.as_struct() == right.as_struct() and set(left.identifier_field_ids) == set(right.identifier_field_ids)


def catch_up(base: TableMetadata, change: IcebergTable) -> None:
    """Give the change store the schema of the base store, if a schema change was interrupted in between."""
    refusal: CommitFailedException | None = None
    for _ in RetryPolicy.of(change.metadata).races(lambda: change.metadata_location):
        if are_equal(base.schema(), change.metadata.schema()):
            return
        updates, requirements = _schema_updates(base, change.metadata)
        try:
            change.metadata = change.catalog.commit_table(change, requirements, updates).metadata
        except CommitFailedException as error:  # another process did it, or wrote changes
            refusal = error
            change.refresh()
        else:
            return
    raise Conflict(f"the catalog refused the new schema of the change store: {refusal}", hint="Try again.") from refusal


def _schema_updates(
    base: TableMetadata, change: TableMetadata
) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """The updates that give the change store the schema of the base store, and what they require."""
    if change.last_column_id > base.last_column_id or not any(are_equal(change.schema(), s) for s in base.schemas):
        raise Damaged(
            "the schemas of base and change store do not belong together",
            hint="One of them was changed directly. Bring the change store to the schema of the base store.",
        )
    former = next((schema.schema_id for schema in change.schemas if are_equal(base.schema(), schema)), None)
    updates: list[TableUpdate] = []
    if former is None:
        fresh = base.schema().model_copy(update={"schema_id": max(schema.schema_id for schema in change.schemas) + 1})
        updates.append(AddSchemaUpdate.model_validate({"schema": fresh, "last-column-id": base.last_column_id}))
    updates.append(SetCurrentSchemaUpdate.model_validate({"schema-id": -1 if former is None else former}))
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=change.table_uuid),
        AssertCurrentSchemaId.model_validate({"current-schema-id": change.current_schema_id}),
        AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": change.last_column_id}),
    )
    return tuple(updates), requirements
