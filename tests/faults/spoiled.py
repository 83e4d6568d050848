"""Storage that misbehaves as the properties of its catalog say. Worker processes load it by name (`py-io-impl`).

Executors get this one file and nothing else of the tests, so it imports none of them.

Names of files that optimizing writes begin with task and attempt: `00001-0-…` is the first attempt of task 1.
"""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path
from typing import Any

from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

SIGNS = "spoil.signs"
"""A folder. Whoever hangs writes its process id there, under the name of the file; what fails once leaves a note there."""
HANG = "spoil.hang"
"""Output files whose names match this expression: the process hangs when half of them is written."""
READ_ONCE = "spoil.read-once"
"""Input files that cannot be opened the first time."""
WRITE_ONCE = "spoil.write-once"
"""Output files that cannot be written the first time."""
_LONGEST_SECONDS = 100


class SpoiledFileIO(PyArrowFileIO):
    """Files of this machine."""

    def new_input(self, location: str) -> PyArrowFile:
        file = super().new_input(location)
        if self._matches(READ_ONCE, location) and self._first_time(f"read-{Path(location).name}"):
            return _Unreadable(location, file)  # type: ignore[return-value]
        return file

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        hangs = self._matches(HANG, location)
        fails = self._matches(WRITE_ONCE, location) and self._first_time("write")
        if hangs or fails:
            return _Spoiled(location, file, self._signs / Path(location).name if hangs else None)  # type: ignore[return-value]
        return file

    @property
    def _signs(self) -> Path:
        return Path(str(self.properties[SIGNS]))

    def _matches(self, key: str, location: str) -> bool:
        expression = self.properties.get(key)
        return expression is not None and re.search(str(expression), Path(location).name) is not None

    def _first_time(self, what: str) -> bool:
        try:
            (self._signs / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class _Unreadable(InputFile):
    def __init__(self, location: str, inner: InputFile) -> None:
        super().__init__(location)
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002
        raise OSError(errno.EIO, "Input/output error")


class WrappedOutput(OutputFile):
    """Behaves like the file it wraps, apart from what is spoiled."""

    def __init__(self, location: str, inner: OutputFile) -> None:
        super().__init__(location)
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def to_input_file(self) -> InputFile:
        return self._inner.to_input_file()


class _Spoiled(WrappedOutput):
    def __init__(self, location: str, inner: OutputFile, sign: Path | None) -> None:
        super().__init__(location, inner)
        self._sign = sign

    def create(self, overwrite: bool = False) -> Any:
        return _Stream(self._inner.create(overwrite), self._sign)


class _Stream:
    """At the first write half of the bytes get to the disk. Then it hangs, or fails."""

    closed = False

    def __init__(self, inner: OutputStream, sign: Path | None) -> None:
        self._inner: Any = inner
        self._sign = sign

    def write(self, data: bytes) -> int:
        self._inner.write(bytes(data)[: max(len(data) // 2, 1)])
        self._inner.flush()
        if self._sign is None:
            raise OSError(errno.EIO, "Input/output error")
        half = self._sign.with_suffix(".half")
        half.write_text(str(os.getpid()))
        half.rename(self._sign)
        time.sleep(_LONGEST_SECONDS)
        raise AssertionError("nobody ended this process")

    def tell(self) -> int:
        return int(self._inner.tell())

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._inner.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
