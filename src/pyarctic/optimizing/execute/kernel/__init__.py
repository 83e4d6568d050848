"""The kernel: one task in, new files and their proof out. It knows files and storage, no catalog and no engine.

Runs in one thread within a memory budget; parallelism comes from tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.optimizing.execute.kernel.execution import execute
    from pyarctic.optimizing.execute.kernel.inputs import Bench
    from pyarctic.optimizing.execute.kernel.key_ranges import Ranging, Written, failure_parcel, joined, sampled, together

__all__ = ["Bench", "Ranging", "Written", "execute", "failure_parcel", "joined", "sampled", "together"]

__getattr__ = lazy_exports(
    __name__,
    {
        "execution": ("execute",),
        "inputs": ("Bench",),
        "key_ranges": ("Ranging", "Written", "failure_parcel", "joined", "sampled", "together"),
    },
)
