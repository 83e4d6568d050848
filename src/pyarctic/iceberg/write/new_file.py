"""A file that was written and is not part of a table yet, and the place it is written for."""

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
    """A random number of 63 bits."""
    high, low = divmod(uuid.uuid4().int, 1 << 64)
    return (high ^ low) & 0x7FFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Column metrics by field id, bounds in Iceberg's single-value form."""

    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    null_counts: Mapping[int, int] = field(default_factory=dict)
    nan_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """What a manifest entry will say of the file. `data_sequence_number` is that of the commit unless given: a file with
    rows of older files keeps theirs, so that deletes which arrived meanwhile still reach them."""

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
    """Names of one attempt's files. They carry the job's id, and are numbered for each suffix: what a lost attempt left can
    be told apart, and found without listing folders."""

    def __init__(self, task: int = 0, attempt: int = 0, job_id: str | None = None) -> None:
        self.job_id = job_id or str(uuid.uuid4())
        self._prefix = f"{task:05d}-{attempt}-{self.job_id}"
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))

    def next(self, suffix: str) -> str:
        return f"{self._prefix}-{next(self._numbers[suffix]):05d}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """Where files go: a table as its metadata shows it, one of its partitions, and the names to use."""

    metadata: TableMetadata
    io: FileIO
    spec_id: int
    partition: tuple[Any, ...]
    names: FileNames
    own_folder: bool = True
    """Whether files go into a folder of their partition; if not, their paths are known before the partition is."""

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
        """A path that no other file has, where the table's properties want it."""
        provider = load_location_provider(self.metadata.location, self.metadata.properties)
        key = _Known(self) if self.spec.fields and self.own_folder else None
        return provider.new_data_location(self.names.next(suffix), key)


class _Known(PartitionKey):
    """A partition key whose values are known. PyIceberg's own would apply the transforms to them once more."""

    def __init__(self, target: FileTarget) -> None:
        super().__init__(field_values=[], partition_spec=target.spec, schema=target.schema)
        object.__setattr__(self, "_target", target)

    def to_path(self) -> str:
        target: FileTarget = vars(self)["_target"]
        return PartitionDecoder(target.metadata).path_of(target.spec_id, target.partition)
