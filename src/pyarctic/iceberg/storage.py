"""Reading and writing files of a table through PyIceberg's FileIO, with errors that name the file and give a hint.

Remote storage charges for requests, and each takes as long as reading a megabyte: small files are read with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from pyiceberg.io import S3_SIGNER, FileIO, InputFile, InputStream

from pyarctic.errors import Damaged, Unavailable

AUTH_MANAGER = "auth.manager"
"""The property in which PyIceberg's REST catalog gives its FileIO the object that renews tokens. Not imported: workers start
faster without catalogs."""
_AUTHORIZATION = "header.Authorization"
_OF_THE_SIGNER = ("header.", "token", "uri")
"""Properties of a REST catalog that are needed to read files if the catalog signs the requests for them."""
_OF_THE_CATALOG = (
    *_OF_THE_SIGNER,
    "auth",
    "audience",
    "credential",
    "dynamodb.",
    "gcp.bigquery.",
    "glue.",
    "hive.",
    "oauth2-server-uri",
    "resource",
    "rest.",
    "scope",
    "ssl",
    "ugi",
)
"""Properties, and beginnings of their names, that a catalog needs and the storage of its tables does not."""


def storage_properties(io: FileIO) -> dict[str, str]:
    """The properties with which another process opens the same storage. They hold its credentials as they are now, and are
    sent to workers only: never logged or stored.

    PyIceberg gives a FileIO the properties of its catalog too. Those stay here: passwords of databases, secrets of clients,
    and the object that renews tokens, which cannot be sent. If the catalog signs requests, its current token takes the
    object's place."""
    signs = bool(io.properties.get(S3_SIGNER))
    dropped = tuple(name for name in _OF_THE_CATALOG if not (signs and name in _OF_THE_SIGNER))
    properties = {
        name: str(value)
        for name, value in io.properties.items()
        if isinstance(value, str | int | float) and not _is_named(name, dropped)
    }
    if signs and (manager := io.properties.get(AUTH_MANAGER)) is not None and (header := _auth_header(manager)):
        properties[_AUTHORIZATION] = header
    return properties


def _auth_header(manager: Any) -> str | None:
    try:
        header: str | None = manager.auth_header()
    except Exception as cause:  # every kind of authentication has its own errors
        raise Unavailable(
            f"no token for the catalog, which signs requests to the storage: {type(cause).__name__}: {cause}",
            hint="Check the token server and try again.",
        ) from cause
    return header


def _is_named(name: str, names: Iterable[str]) -> bool:
    return any(name == each or name.startswith(each if each.endswith(".") else f"{each}.") for each in names)


SMALL_FILE_BYTES = 8 << 20
"""Files in remote storage up to this size are read as a whole."""
_MAX_WHOLE_BYTES = 1 << 40
_REFUSALS = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN", "ExpiredToken")
CREDENTIALS_HINT = "Check the catalog's credentials for the storage, that they have not expired, and what they may do."
_kept_files: ContextVar[_KeptFiles | None] = ContextVar("kept_files", default=None)


@runtime_checkable
class SingleRequests(Protocol):
    """A file that can be read with one request; None means that it cannot, at least not this time."""

    def fetch(self, max_bytes: int) -> tuple[int, bytes | None] | None: ...
    def fetch_range(self, start: int, end: int) -> bytes | None: ...


def is_local(path: str) -> bool:
    """Whether a path leads to a file of this machine: `/x`, `file:/x` (as Java writes it) or `file:///x`."""
    return path.startswith(("file:", "/"))


@contextmanager
def open_input(io: FileIO, path: str, size: int | None = None) -> Iterator[InputStream]:
    """Open `path` for reading. A remote file whose `size` is known and small is read at once; `Damaged` is raised if its
    size is another. Local files are opened as they are."""
    with _translate_open_errors(path):
        file = io.new_input(path)
        is_small = size is not None and size <= SMALL_FILE_BYTES and not is_local(path)
        stream = _buffer(_read_small(file, size)) if is_small and size is not None else file.open()
    with stream:
        yield stream


@contextmanager
def keep_small_files(max_bytes: int) -> Iterator[None]:
    """Within the block, small remote files that are opened again are not read again, up to so many bytes. For work on files
    of a snapshot, which nobody changes."""
    token = _kept_files.set(_KeptFiles(max_bytes))
    try:
        yield
    finally:
        _kept_files.reset(token)


class _KeptFiles:
    """The content of files; the oldest are forgotten first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._files: dict[str, bytes] = {}
        self._bytes = 0

    def get(self, path: str) -> bytes | None:
        return self._files.get(path)

    def add(self, path: str, data: bytes) -> None:
        self._bytes += len(data) - len(self._files.pop(path, b""))
        self._files[path] = data
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._files.pop(next(iter(self._files))))


def _read_small(file: InputFile, size: int) -> bytes:
    kept = _kept_files.get()
    if kept is not None and (data := kept.get(file.location)) is not None:
        return data
    fetched = file.fetch(size) if isinstance(file, SingleRequests) else None
    if fetched is None:
        with file.open() as stream:
            data = bytes(stream.read(size + 1))
        fetched = len(data), data
    found, content = fetched
    if content is None or found != size:
        raise Damaged(
            f"file has {f'more than {size}' if found > size else found} bytes, its manifest says {size}: {file.location}",
            hint="It was cut off or overwritten after it was written: restore it from a backup, or roll back to a snapshot "
            "that does not need it. `arctic check` finds all such files.",
            file=file.location,
        )
    if kept is not None:
        kept.add(file.location, content)
    return content


def _buffer(data: bytes) -> Any:
    import pyarrow as pa  # listing tables reads no file, and starts faster without

    return pa.BufferReader(data)


def is_refused(cause: OSError) -> bool:
    """Whether the storage refuses to serve us. For most storages Arrow tells it in the text only."""
    return isinstance(cause, PermissionError) or any(name in str(cause) for name in _REFUSALS)


@contextmanager
def _translate_open_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as cause:
        raise Damaged(
            f"file is missing: {path}",
            hint="It was not removed by a commit of the table, but for instance by an orphan file cleanup with too short a "
            "retention. Restore it from a backup, or read or roll back to a snapshot that does not need it.",
            file=path,
        ) from cause
    except OSError as cause:
        if is_refused(cause):
            raise Unavailable(f"no permission to read {path}", hint=CREDENTIALS_HINT, file=path) from cause
        raise Unavailable(f"cannot open {path}: {cause}", hint="Check the storage and try again.", file=path) from cause


def read_bytes(io: FileIO, path: str, *, never_changes: bool = False) -> bytes:
    """The complete content of a file that fits into memory; if it `never_changes`, it is kept by `keep_small_files`."""
    if is_local(path):
        return _read_stream(io, path, 0, None)
    kept = _kept_files.get() if never_changes else None
    if kept is not None and (data := kept.get(path)) is not None:
        return data
    with _translate_open_errors(path):
        file = io.new_input(path)
        fetched = file.fetch(_MAX_WHOLE_BYTES) if isinstance(file, SingleRequests) else None
    data = fetched[1] if fetched is not None else None
    if data is None:
        data = _read_stream(io, path, 0, None)
    if kept is not None:
        kept.add(path, data)
    return data


def read_range(io: FileIO, path: str, offset: int, length: int, size: int | None = None) -> bytes:
    """`length` bytes from `offset`; fewer if the file ends before. `size` is that of the file, if it is known."""
    if not is_local(path):
        if _kept_files.get() is not None and size is not None and size <= SMALL_FILE_BYTES:
            with open_input(io, path, size) as stream:  # other ranges will be needed, too
                stream.seek(offset)
                return bytes(stream.read(length))
        with _translate_open_errors(path):
            file = io.new_input(path)
            data = file.fetch_range(offset, offset + length) if isinstance(file, SingleRequests) else None
        if data is not None:
            return data
    return _read_stream(io, path, offset, length)


def _read_stream(io: FileIO, path: str, offset: int, length: int | None) -> bytes:
    with open_input(io, path) as stream:
        try:
            if offset:
                stream.seek(offset)
            return bytes(stream.read() if length is None else stream.read(length))
        except OSError as cause:
            raise Unavailable(
                f"reading {path} failed: {cause}", hint="Check the storage and try again.", file=path
            ) from cause


def write_bytes(io: FileIO, path: str, data: bytes, *, overwrite: bool = False) -> None:
    """Write a complete file, or nothing."""
    with remove_if_incomplete(io, path), io.new_output(path).create(overwrite) as stream:
        stream.write(data)


@contextmanager
def remove_if_incomplete(io: FileIO, path: str) -> Iterator[None]:
    """Remove an incomplete file when writing it fails, as on a full disk, and raise Unavailable."""
    try:
        yield
    except OSError as cause:
        if not isinstance(cause, FileExistsError):  # that one is complete, and another writer's
            remove_quietly(io, [path])
        raise Unavailable(
            f"cannot write {path}: {cause}",
            hint="Nothing was committed. Check space and permissions of the table's location, then try again.",
            file=path,
        ) from cause


@runtime_checkable
class WrapsStorage(Protocol):
    """A FileIO that passes everything on to another one, which may be a different one each time."""

    def wrapped(self) -> FileIO: ...


def list_folder(io: FileIO, folder: str) -> list[str] | None:
    """The files in a folder; none if it does not exist. None: the storage is of a kind that cannot list."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if isinstance(io, WrapsStorage):
        io = io.wrapped()
    if isinstance(io, PyArrowFileIO):
        from pyarrow.fs import FileSelector, FileType

        scheme, netloc, path = PyArrowFileIO.parse_location(folder, io.properties)
        entries = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, allow_not_found=True))
        return [f"{folder}/{entry.base_name}" for entry in entries if entry.type == FileType.File]
    if hasattr(io, "get_fs"):  # fsspec's, which need not be installed
        filesystem = io.get_fs(folder.partition("://")[0] if "://" in folder else "file")
        filesystem.invalidate_cache()
        if not filesystem.exists(folder):
            return []
        entries = filesystem.ls(folder, detail=True)
        return [f"{folder}/{entry['name'].rpartition('/')[2]}" for entry in entries if entry["type"] == "file"]
    return None


def remove_quietly(io: FileIO, paths: Iterable[str]) -> set[str]:
    """Delete files, and return those that could not be deleted: a file that stays is an orphan and does no harm to the
    table."""
    failed: set[str] = set()
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except Exception:  # noqa: BLE001  # every storage has its own errors
            failed.add(path)
    return failed
