"""Writing rows: changes into the change store, loads and overwrites into Base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.tables.write.distributed import IS_OLD, Answer, Distribution, FileWriter
    from pyarctic.tables.write.input_files import InputFile, input_file, schema_like
    from pyarctic.tables.write.prepared import Note, Write

__all__ = ["IS_OLD", "Answer", "Distribution", "FileWriter", "InputFile", "Note", "Write", "input_file", "schema_like"]

__getattr__ = lazy_exports(
    __name__,
    {
        "distributed": ("Answer", "Distribution", "FileWriter", "IS_OLD"),
        "input_files": ("InputFile", "input_file", "schema_like"),
        "prepared": ("Note", "Write"),
    },
)
