"""Writing rows: changes to the change store, loads and overwrites to Base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.tables.write.distributed import IS_OLD, DistributedWriter, WriterAssignment, WriterResult
    from pyarctic.tables.write.input_files import InputFile, infer_schema, open_input_file
    from pyarctic.tables.write.once import parse_step, write_once
    from pyarctic.tables.write.prepared import CommitNote, PreparedWrite

__all__ = [
    "IS_OLD",
    "CommitNote",
    "DistributedWriter",
    "InputFile",
    "PreparedWrite",
    "WriterAssignment",
    "WriterResult",
    "infer_schema",
    "open_input_file",
    "parse_step",
    "write_once",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "distributed": ("WriterResult", "WriterAssignment", "DistributedWriter", "IS_OLD"),
        "input_files": ("InputFile", "open_input_file", "infer_schema"),
        "once": ("parse_step", "write_once"),
        "prepared": ("CommitNote", "PreparedWrite"),
    },
)
