"""Files that were written and are not part of a table yet, and the target they are written for."""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from pyarctic.errors import UsageError
from pyarctic.iceberg.manifest.partition_keys import PartitionDecoder
from pyarctic.iceberg.manifest.reader import POSITION_DELETES


def random_id() -> int:
    """A random 63-bit number, as the specification suggests for snapshot ids."""
    high, low = divmod(uuid.uuid4().int, 1 << 64)
    return (high ^ low) & 0x7FFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Column metrics by field id, bounds in Iceberg's single-value serialization."""

    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    null_counts: Mapping[int, int] = field(default_factory=dict)
    nan_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A written file as its manifest entry will describe it. `data_sequence_number` is that of the commit unless given: a
    file with rows of older files keeps theirs, so that deletes committed meanwhile still apply to them."""

    content: int
    path: str
    file_format: str
    spec_id: int
    partition: tuple[Any, ...]
    record_count: int
    file_size_bytes: int
    metrics: Metrics = field(default_factory=Metrics)
    split_offsets: tuple[int, ...] = ()
    sort_order_id: int | None = None
    equality_ids: tuple[int, ...] = ()
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_bytes: int | None = None
    data_sequence_number: int | None = None

    @property
    def is_vector(self) -> bool:
        return self.content == POSITION_DELETES and self.file_format == "PUFFIN"


class FileNames:
    """Names of the files of one attempt. They contain the id of the job and are numbered for each suffix, so that the files
    of a lost attempt can be identified, and found without listing directories."""

    def __init__(self, task: int = 0, attempt: int = 0, job_id: str | None = None, first: int = 1) -> None:
        """`first`: the number of the first file."""
        self.job_id = job_id or str(uuid.uuid4())
        self._prefix = f"{task:05d}-{attempt}-{self.job_id}"
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(first))

    def next(self, suffix: str) -> str:
        """A name that was not used before."""
        return f"{self._prefix}-{next(self._numbers[suffix]):05d}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """What files are written for: a table, one of its partitions, and the names to use."""

    metadata: TableMetadata
    io: FileIO
    spec_id: int
    partition: tuple[Any, ...]
    names: FileNames
    own_folder: bool = True
    """Whether files are written to a directory of their partition; if not, paths do not depend on the partition."""
    listed: bool = False
    """Whether files are written to the data folder itself, in every layout: they are found by listing it."""

    def __post_init__(self) -> None:
        if self.spec_id not in self.metadata.specs():
            raise UsageError(
                f"the table has no partition spec {self.spec_id}", hint=f"There are: {[*self.metadata.specs()]}."
            )
        if len(self.partition) != len(self.spec.fields):
            raise UsageError(
                f"{len(self.partition)} partition values given, spec {self.spec_id} has {len(self.spec.fields)} fields",
                hint=f"The spec is: {self.spec}.",
            )

    @property
    def spec(self) -> PartitionSpec:
        return self.metadata.specs()[self.spec_id]

    @property
    def schema(self) -> Schema:
        return self.metadata.schema()

    def new_path(self, suffix: str) -> str:
        """A new path in the location that the table's properties define."""
        provider = load_location_provider(self.metadata.location, self.metadata.properties)
        if self.listed:
            return f"{provider.data_path}/{self.names.next(suffix)}"
        key = _TargetPartition(self) if self.spec.fields and self.own_folder else None
        return provider.new_data_location(self.names.next(suffix), key)


class _TargetPartition(PartitionKey):
    """The partition of a target. PyIceberg's own class would apply the transforms to its values once more."""

    def __init__(self, target: FileTarget) -> None:
        super().__init__(field_values=[], partition_spec=target.spec, schema=target.schema)
        object.__setattr__(self, "_target", target)

    def to_path(self) -> str:
        target: FileTarget = vars(self)["_target"]
        return PartitionDecoder(target.metadata).path_of(target.spec_id, target.partition)
