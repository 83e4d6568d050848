"""The registry of table properties that configure PyArctic: names, types, defaults and descriptions.

Names are those of Apache Amoro (`self-optimizing.*`); older names (`compact.major.*`) are aliases. If a property is set
under several names, the main name takes precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Generic, TypeVar

from pyarctic.errors import UsageError
from pyarctic.units import parse_bytes, parse_duration

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class TableProperty(Generic[T_co]):
    """A table property: its names, default, parser and description."""

    name: str
    aliases: tuple[str, ...] = ()
    default: T_co
    default_text: str
    allowed: str
    """A description of the allowed values, for error messages: "Allowed is …"."""
    parse: Callable[[str], T_co]
    doc: str

    def of(self, properties: Mapping[str, str]) -> T_co:
        """The value of this property for a table with these properties."""
        for name in (self.name, *self.aliases):
            if name in properties:
                return self._parse(name, properties[name])
        return self.default

    def _parse(self, name: str, text: str) -> T_co:
        try:
            return self.parse(text)
        except ValueError:
            raise UsageError(
                f"table property {name} = {text!r} is not valid",
                hint=f"Allowed is {self.allowed}. The default is {self.default_text}.",
                key=name,
                value=text,
            ) from None


def _size(text: str) -> int:
    return _greater_than(0, parse_bytes(text))


def _count(text: str) -> int:
    return _greater_than(0, int(text))


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError
    return value


def _weight(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _optional_depth(text: str) -> int | None:
    return None if text.strip() == "-1" else _greater_than(1, int(text))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError
    return names


def _optional_duration(text: str) -> timedelta | None:
    return None if text.strip() == "-1" else parse_duration(text)


def _flag(text: str) -> bool:
    return bool(("false", "true").index(text.strip().lower()))  # raises ValueError for other words


def _storage(text: str) -> str:
    if text not in ("summary", "statistics"):
        raise ValueError
    return text


def _greater_than(limit: int, value: int) -> int:
    if value <= limit:
        raise ValueError
    return value


_COUNT, _RATIO, _FLAG = "a whole number above 0", "a number above 0, at most 1", "true or false"
_SIZE = "a size such as 128MB, or a number of bytes"
_DURATION = "a duration such as 30min, or a number of milliseconds"

TARGET_SIZE = TableProperty[int | None](
    name="self-optimizing.target-size",
    default=None,
    default_text="write.target-file-size-bytes, else 128 MiB",
    allowed=_SIZE,
    parse=_size,
    doc="The target size of data files.",
)
MIN_TARGET_RATIO = TableProperty[float](
    name="self-optimizing.min-target-size-ratio",
    default=0.75,
    default_text="0.75",
    allowed=_RATIO,
    parse=_ratio,
    doc="A file of at least this fraction of the target size is large enough; a smaller one is undersized.",
)
FRAGMENT_RATIO = TableProperty[int](
    name="self-optimizing.fragment-ratio",
    default=8,
    default_text="8",
    allowed=_COUNT,
    parse=_count,
    doc="A file smaller than the target size divided by this is a fragment.",
)
FRAGMENT_SIZE = TableProperty[int | None](
    name="self-optimizing.fragment-size",
    aliases=("compact.major.small.file.size.bytes",),
    default=None,
    default_text="target size / fragment ratio",
    allowed=_SIZE,
    parse=_size,
    doc="A file smaller than this is a fragment.",
)
MINOR_FILE_COUNT = TableProperty[int](
    name="self-optimizing.minor.trigger.file-count",
    aliases=("compact.major.file.cnt",),
    default=12,
    default_text="12",
    allowed=_COUNT,
    parse=_count,
    doc="Minor optimizing is due if a partition has this many small files (fragments and equality delete files).",
)
MINOR_INTERVAL = TableProperty[timedelta | None](
    name="self-optimizing.minor.trigger.interval",
    aliases=("compact.major.interval.max",),
    default=timedelta(hours=1),
    default_text="1 h",
    allowed=_DURATION + ", or -1 for never",
    parse=_optional_duration,
    doc="Minor optimizing is due after this time, even with few small files or equality deletes.",
)
MINOR_DELETE_SIZE = TableProperty[int](
    name="self-optimizing.minor.trigger.delete-size",
    aliases=("compact.major.delete.file.size.bytes",),
    default=32 << 20,
    default_text="32 MiB",
    allowed=_SIZE,
    parse=_size,
    doc="Minor optimizing converts equality deletes to position deletes if a partition has this size of them.",
)
MAJOR_DELETE_RATIO = TableProperty[float](
    name="self-optimizing.major.trigger.duplicate-ratio",
    aliases=("compact.major.delete.file.ratio",),
    default=0.1,
    default_text="0.1",
    allowed="a number above 0; one above 1 is never reached",
    parse=_weight,
    doc="Major optimizing is due at this fraction of deleted rows, and files that reach it are rewritten.",
)
MAJOR_DELETE_LOWEST = TableProperty[int](
    name="self-optimizing.major.trigger.delete-size-lowest",
    aliases=("compact.major.delete.file.size.bytes.lowest",),
    default=64 << 10,
    default_text="64 KiB",
    allowed=_SIZE,
    parse=_size,
    doc="Below this size of delete files the ratio of deleted rows is ignored.",
)
FULL_POSITION_DELETE_SIZE = TableProperty[int](
    name="self-optimizing.full.trigger.position-delete-size",
    default=16 << 20,
    default_text="16 MiB",
    allowed=_SIZE,
    parse=_size,
    doc="Full optimizing is due if a partition has this size of position deletes (files or vectors).",
)
FULL_INTERVAL = TableProperty[timedelta | None](
    name="self-optimizing.full.trigger.interval",
    default=None,
    default_text="never",
    allowed=_DURATION + ", or -1 for never",
    parse=_optional_duration,
    doc="Full optimizing is due after this time since the last full optimizing of a partition.",
)
MAX_FILE_COUNT = TableProperty[int](
    name="self-optimizing.max-file-count",
    default=10_000,
    default_text="10,000",
    allowed=_COUNT,
    parse=_count,
    doc="Maximum number of data files in one plan; the rest waits for the next plan.",
)
MAX_PLAN_SIZE = TableProperty[int](
    name="self-optimizing.max-plan-size",
    default=64 << 30,
    default_text="64 GiB",
    allowed=_SIZE,
    parse=_size,
    doc="Maximum amount of data that one plan rewrites.",
)
MAX_TASK_SIZE = TableProperty[int | None](
    name="self-optimizing.max-task-size-bytes",
    default=None,
    default_text="four times the target size",
    allowed=_SIZE,
    parse=_size,
    doc="Maximum amount of data that one task rewrites; larger partitions are divided into several tasks.",
)
SORT_ON_REWRITE = TableProperty[bool](
    name="self-optimizing.sort-on-rewrite",
    default=True,
    default_text="true",
    allowed=_FLAG,
    parse=_flag,
    doc="Major and full optimizing sort the rows of a task by the table's sort order, if it has one.",
)
Z_ORDER = TableProperty[tuple[str, ...]](
    name="self-optimizing.z-order",
    default=(),
    default_text="none",
    allowed="a list of different columns, separated by commas",
    parse=_names,
    doc="Columns by which major and full optimizing cluster rows with equal weight; it overrides the table's sort order.",
)
SORT_OVERLAP_DEPTH = TableProperty[int | None](
    name="self-optimizing.sort.trigger.overlap-depth",
    default=4,
    default_text="4",
    allowed="a whole number above 1, or -1 for never",
    parse=_optional_depth,
    doc="Major optimizing sorts files of a sorted partition together if this many of them contain the same keys.",
)
WRITERS_FIRST = TableProperty[bool](
    name="self-optimizing.writers-first",
    default=True,
    default_text="true",
    allowed=_FLAG,
    parse=_flag,
    doc="Do not rewrite data files of partitions in which other writers are deleting, updating or merging rows.",
)
WRITERS_QUIET_TIME = TableProperty[timedelta](
    name="self-optimizing.writers-first.quiet-time",
    default=timedelta(seconds=30),
    default_text="30 s",
    allowed=_DURATION,
    parse=parse_duration,
    doc="How long a partition is held back after another writer deleted, updated or merged rows in it; ten times as long "
    "until a cadence is known.",
)

TRANSACTION_TIMEOUT = TableProperty[timedelta](
    name="self-optimizing.transaction-timeout",
    default=timedelta(hours=1),
    default_text="1 h",
    allowed=_DURATION,
    parse=parse_duration,
    doc="Keyed tables: how long a transaction that was begun but not committed blocks the merging of later changes.",
)

LEFTOVERS_MIN_AGE = TableProperty[timedelta](
    name="self-optimizing.leftovers.min-age",
    default=timedelta(days=3),
    default_text="3 d",
    allowed=_DURATION,
    parse=parse_duration,
    doc="How long a killed process must be dead before a later one removes the files that it left.",
)

SHARE_INSERTS = TableProperty[bool](
    name="self-optimizing.share-insert-files",
    default=False,
    default_text="false",
    allowed=_FLAG,
    parse=_flag,
    doc="Keyed tables: large insert files become part of the base store as they are, and stay in the change store.",
)

ENABLED = TableProperty[bool](
    name="self-optimizing.enabled",
    default=True,
    default_text="true",
    allowed=_FLAG,
    parse=_flag,
    doc="Whether the management service optimizes the table.",
)

GROUP = TableProperty[str](
    name="self-optimizing.group",
    aliases=("optimize.group",),
    default="default",
    default_text="default",
    allowed="the name of an optimizer group",
    parse=str,
    doc="The optimizer group whose optimizers execute the table's tasks.",
)

COMMIT_INTERVAL = TableProperty[timedelta | None](
    name="self-optimizing.commit-interval",
    default=None,
    default_text="5min",
    allowed=_DURATION,
    parse=parse_duration,
    doc="The least time between two commits of the management service to the table; 0 commits at once.",
)

QUOTA = TableProperty[float](
    name="self-optimizing.quota",
    aliases=("optimize.quota",),
    default=0.1,
    default_text="0.1",
    allowed="a number above 0",
    parse=_weight,
    doc="The weight of the table among those that share optimizers: tables with a higher weight are optimized sooner.",
)

MERGED_SEQUENCES_STORAGE = TableProperty[str](
    name="arctic.merged-sequences.storage",
    default="summary",
    default_text="summary",
    allowed="summary or statistics",
    parse=_storage,
    doc="Keyed tables: where it is stored how far changes are merged. PyIceberg cannot load a base store with statistics.",
)

TABLE_PROPERTIES: tuple[TableProperty[object], ...] = (
    TARGET_SIZE,
    MIN_TARGET_RATIO,
    FRAGMENT_RATIO,
    FRAGMENT_SIZE,
    MINOR_FILE_COUNT,
    MINOR_INTERVAL,
    MINOR_DELETE_SIZE,
    MAJOR_DELETE_RATIO,
    MAJOR_DELETE_LOWEST,
    FULL_POSITION_DELETE_SIZE,
    FULL_INTERVAL,
    MAX_FILE_COUNT,
    MAX_PLAN_SIZE,
    MAX_TASK_SIZE,
    SORT_ON_REWRITE,
    Z_ORDER,
    SORT_OVERLAP_DEPTH,
    WRITERS_FIRST,
    WRITERS_QUIET_TIME,
    TRANSACTION_TIMEOUT,
    LEFTOVERS_MIN_AGE,
    SHARE_INSERTS,
    ENABLED,
    GROUP,
    COMMIT_INTERVAL,
    QUOTA,
    MERGED_SEQUENCES_STORAGE,
)
"""All table properties, in the order of the documentation."""

_NEAR_MISS = 0.85
"""How similar a name must be to one of ours, if its beginning is another, to be taken for a misspelling."""
_PREFIXES = ("self-optimizing.", "compact.major.", "optimize.")


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise a UsageError for invalid values."""
    for entry in TABLE_PROPERTIES:
        for name in (entry.name, *entry.aliases):
            if name in properties:
                entry.of({name: properties[name]})


def unknown_properties(properties: Mapping[str, str]) -> dict[str, str | None]:
    """Properties that look like PyArctic's but are unknown, with the closest known name of each. A misspelt name would be
    ignored silently."""
    known_names = [name for entry in TABLE_PROPERTIES for name in (entry.name, *entry.aliases)]
    unknown: dict[str, str | None] = {}
    for name in properties:
        is_ours = name.startswith(_PREFIXES)
        similar = get_close_matches(name, known_names, n=1, cutoff=0.6 if is_ours else _NEAR_MISS)
        if name not in known_names and (is_ours or similar):
            unknown[name] = next(iter(similar), None)
    return unknown
