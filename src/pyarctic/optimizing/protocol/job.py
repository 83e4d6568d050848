"""What all tasks of one plan share, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from pyarctic.errors import ProtocolError
from pyarctic.iceberg import trim_metadata
from pyarctic.iceberg.catalog import apply_patches
from pyarctic.optimizing.protocol.wire import Fields, id_to_text, to_document

_KEPT_PROPERTIES = ("write.", "schema.name-mapping.", "mixed-format.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What the tasks of one plan share: the table as it was when they were planned, and how to work."""

    id: str
    table: str
    metadata: TableMetadata
    """Without snapshots, and with only those properties that say how files are written and read."""
    snapshot_id: int | None
    sequence_number: int | None
    """The data sequence number of rewritten files; None: that of their commit."""
    memory_bytes: int
    verify: bool = False
    """Compare the content of input and output by hash."""

    @property
    def keeps_lineage(self) -> bool:
        """Whether rows have ids that a rewrite must keep."""
        return self.metadata.format_version >= 3

    def to_json(self) -> dict[str, Any]:
        """This job as a JSON document."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values |= {"snapshot_id": id_to_text(self.snapshot_id), "metadata": json.loads(self.metadata.model_dump_json())}
        return to_document("job", values)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The job of a JSON document."""
        given = Fields.of(document, "job")
        return cls(
            id=given.text("id"),
            table=given.text("table"),
            metadata=_parse_metadata(given.value("metadata")),
            snapshot_id=given.optional_id("snapshot_id"),
            sequence_number=given.optional_number("sequence_number"),
            memory_bytes=given.number("memory_bytes"),
            verify=given.flag("verify"),
        )


def _parse_metadata(document: Any) -> TableMetadata:
    apply_patches()  # whoever reads a job may have opened no catalog; version 3 needs them
    try:
        return TableMetadataUtil.parse_raw(json.dumps(document))
    except (ValueError, ValidationError) as cause:
        reason = str(cause).splitlines()[0]
        raise ProtocolError(f"the metadata of the job is not Iceberg's: {reason}", type="job", field="metadata") from cause


def job_metadata(metadata: TableMetadata) -> TableMetadata:
    """The part of a table's metadata that tasks need."""
    return trim_metadata(metadata, lambda key: key.startswith(_KEPT_PROPERTIES))
