"""The kernel: executes one task, and returns new files and their proof. It knows files and storage, but neither catalogs nor
engines.

Runs in one thread within a memory budget; parallelism comes from tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.execute.kernel.execution import execute
    from pyarctic.optimizing.execute.kernel.inputs import JobContext
    from pyarctic.optimizing.execute.kernel.key_ranges import (
        RangePartitioner,
        RangeResult,
        combine_results,
        combine_samples,
        failure_packet,
        sample_keys,
    )

__all__ = [
    "JobContext",
    "RangePartitioner",
    "RangeResult",
    "combine_results",
    "combine_samples",
    "execute",
    "failure_packet",
    "sample_keys",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "execution": ("execute",),
        "inputs": ("JobContext",),
        "key_ranges": (
            "RangePartitioner",
            "RangeResult",
            "failure_packet",
            "combine_results",
            "sample_keys",
            "combine_samples",
        ),
    },
)
