"""How a table should be optimized: its properties, parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from pyarctic.config import table_properties as registry
from pyarctic.iceberg.write import positive_property

_TASK_TARGETS = 4
"""A task of a few target sizes divides its rows evenly, however much they shrink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The optimizing settings of a table."""

    target_bytes: int
    min_target_bytes: int
    """Files of at least this size are not rewritten because of their size."""
    fragment_bytes: int
    """Files below this size are fragments; those between are undersized."""
    task_bytes: int
    plan_files: int
    plan_bytes: int
    minor_file_count: int
    minor_interval: timedelta | None
    minor_delete_bytes: int
    major_delete_ratio: float
    major_delete_lowest_bytes: int
    full_position_delete_bytes: int
    full_interval: timedelta | None
    sort: bool
    z_order: tuple[str, ...]
    overlap_depth: int | None
    writers_first: bool
    quiet_time: timedelta
    transaction_timeout: timedelta
    leftovers_min_age: timedelta
    share_inserts: bool
    write_nodes: int = 1
    """The number of tree nodes that a keyed table's changes are written to. Thresholds for one node are multiplied by it."""

    @classmethod
    def of(cls, properties: Mapping[str, str], write_nodes: int = 1) -> Self:
        """Parse table properties."""
        target = registry.TARGET_SIZE.of(properties) or positive_property(
            properties, "write.target-file-size-bytes", 128 << 20
        )
        fragment = registry.FRAGMENT_SIZE.of(properties) or target // registry.FRAGMENT_RATIO.of(properties)
        min_target = int(target * registry.MIN_TARGET_RATIO.of(properties))
        return cls(
            target_bytes=target,
            min_target_bytes=min_target,
            fragment_bytes=min(fragment, min_target),
            task_bytes=registry.MAX_TASK_SIZE.of(properties) or _TASK_TARGETS * target,
            plan_files=registry.MAX_FILE_COUNT.of(properties),
            plan_bytes=registry.MAX_PLAN_SIZE.of(properties),
            minor_file_count=registry.MINOR_FILE_COUNT.of(properties),
            minor_interval=registry.MINOR_INTERVAL.of(properties),
            minor_delete_bytes=registry.MINOR_DELETE_SIZE.of(properties),
            major_delete_ratio=registry.MAJOR_DELETE_RATIO.of(properties),
            major_delete_lowest_bytes=registry.MAJOR_DELETE_LOWEST.of(properties),
            full_position_delete_bytes=registry.FULL_POSITION_DELETE_SIZE.of(properties),
            full_interval=registry.FULL_INTERVAL.of(properties),
            sort=registry.SORT_ON_REWRITE.of(properties),
            z_order=registry.Z_ORDER.of(properties),
            overlap_depth=registry.SORT_OVERLAP_DEPTH.of(properties),
            writers_first=registry.WRITERS_FIRST.of(properties),
            quiet_time=registry.WRITERS_QUIET_TIME.of(properties),
            transaction_timeout=registry.TRANSACTION_TIMEOUT.of(properties),
            leftovers_min_age=registry.LEFTOVERS_MIN_AGE.of(properties),
            share_inserts=registry.SHARE_INSERTS.of(properties),
            write_nodes=write_nodes,
        )
