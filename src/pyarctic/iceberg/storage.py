"""Reading and writing files of a table through PyIceberg's FileIO, with errors that name the file and give a hint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyiceberg.io import FileIO, InputStream

from pyarctic.errors import Damaged, Unavailable


@contextmanager
def open_input(io: FileIO, path: str) -> Iterator[InputStream]:
    """Open `path` for reading. Local files may be written as `file:/x` (as Java does) or `file:///x`."""
    try:
        stream = io.new_input(path).open()
    except FileNotFoundError as cause:
        raise Damaged(
            f"file is missing: {path}",
            hint="It was not removed by a commit of the table, but for instance by an orphan file cleanup with too short a "
            "retention. Restore it from a backup, or read or roll back to a snapshot that does not need it.",
            file=path,
        ) from cause
    except PermissionError as cause:
        raise Unavailable(f"no permission to read {path}", hint="Check the catalog's credentials.", file=path) from cause
    except OSError as cause:
        raise Unavailable(f"cannot open {path}: {cause}", hint="Check the storage and try again.", file=path) from cause
    with stream:
        yield stream


def read_bytes(io: FileIO, path: str) -> bytes:
    """The complete content of a small file."""
    return read_range(io, path, 0, None)


def read_range(io: FileIO, path: str, offset: int, length: int | None) -> bytes:
    """`length` bytes from `offset`, or all that follow if it is None; fewer if the file ends before."""
    with open_input(io, path) as stream:
        try:
            if offset:
                stream.seek(offset)
            return bytes(stream.read() if length is None else stream.read(length))
        except OSError as cause:
            raise Unavailable(
                f"reading {path} failed: {cause}", hint="Check the storage and try again.", file=path
            ) from cause


def write_bytes(io: FileIO, path: str, data: bytes) -> None:
    """Write a complete file, or nothing."""
    with remove_if_incomplete(io, path), io.new_output(path).create() as stream:
        stream.write(data)


@contextmanager
def remove_if_incomplete(io: FileIO, path: str) -> Iterator[None]:
    """Remove an incomplete file when writing it fails, as on a full disk, and raise Unavailable."""
    try:
        yield
    except OSError as cause:
        remove_quietly(io, [path])
        raise Unavailable(
            f"cannot write {path}: {cause}",
            hint="Nothing was committed. Check space and permissions of the table's location, then try again.",
            file=path,
        ) from cause


def remove_quietly(io: FileIO, paths: Iterable[str]) -> None:
    """Delete files and ignore failures: a file that stays is an orphan and does no harm to the table."""
    for path in paths:
        try:
            io.delete(path)
        except Exception:  # noqa: BLE001, S112  # every storage has its own errors
            continue
