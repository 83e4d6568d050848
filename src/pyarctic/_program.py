"""How programs of ours start and end fast: the command line and worker processes. A library must not do this to others."""

from __future__ import annotations

import atexit
import gc

from pyarctic._pandas import hide_pandas

_NEW_OBJECTS = 50_000
"""How many more objects than now there are when cycles are looked for. Imports create some hundred thousand that stay:
with Python's 700, looking through them again and again takes a fifth of the time to start."""


def prepare_program() -> None:
    """To be called before the heavy imports: pandas is not imported, cycles of objects are looked for less often, and at the
    end not at all, when the system takes back all memory anyway."""
    hide_pandas()
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)
