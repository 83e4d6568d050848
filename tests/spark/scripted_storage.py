"""Storage that hangs or fails when a file in a folder says so. Such an order is taken once, by the first process to find it.

Executors get this one file and nothing else of the tests, so it imports none of them.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

FOLDER = "scripted-storage.orders"
"""The property that names the folder."""
HANG_WRITE, FAIL_WRITE, HANG_READ = "hang-write", "fail-write", "hang-read"
_LONGEST_SECONDS = 100


def take(folder: Path, order: str, file: str = "") -> bool:
    """Take an order if it is there, and tell in a sign who took it, and for which file."""
    mine = folder / f"{order}.{os.getpid()}"
    try:
        (folder / order).rename(mine)
    except FileNotFoundError:
        return False
    mine.write_text(json.dumps({"process": os.getpid(), "file": file}))
    mine.rename(sign_of(folder, order))
    return True


def sign_of(folder: Path, order: str) -> Path:
    return folder / f"{order}.taken"


def hang() -> None:
    time.sleep(_LONGEST_SECONDS)
    raise AssertionError("nobody ended this process")


class ScriptedFileIO(PyArrowFileIO):
    """Files of this machine; orders are about those with rows."""

    def new_input(self, location: str) -> PyArrowFile:
        if location.endswith(".parquet") and take(self._orders, HANG_READ, location):
            hang()
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        is_data = location.endswith(".parquet")
        return _Output(location, file, self._orders) if is_data else file  # type: ignore[return-value]

    @property
    def _orders(self) -> Path:
        return Path(str(self.properties[FOLDER]))


class _Output(OutputFile):
    """Behaves like the file it wraps, until there is an order. Of its file the first bytes are on the disk then."""

    def __init__(self, location: str, inner: OutputFile, orders: Path) -> None:
        super().__init__(location)
        self._inner = inner
        self._orders = orders

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def to_input_file(self) -> InputFile:
        return self._inner.to_input_file()

    def create(self, overwrite: bool = False) -> Any:
        stream = self._inner.create(overwrite)
        order = next((name for name in (HANG_WRITE, FAIL_WRITE) if (self._orders / name).exists()), None)
        if order is None:
            return stream
        stream.write(b"PAR1")
        stream.close()
        if take(self._orders, order, self.location):
            if order == HANG_WRITE:
                hang()
            raise OSError(errno.EIO, "Input/output error")
        return self._inner.create(overwrite=True)
