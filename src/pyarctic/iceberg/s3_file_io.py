"""PyIceberg's FileIO for S3 storage with fewer requests: one GET reads a small object, one PUT writes it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.io import S3_RETRY_STRATEGY_IMPL, InputFile, InputStream, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from pyarctic.iceberg.s3_requests import S3Access, S3Requests

_MAX_METADATA_BYTES = 256 << 20
_METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz", ".avro")


class S3File(PyArrowFile):
    """An object. What single requests cannot do is left to Arrow."""

    def __init__(self, file: PyArrowFile, requests: S3Requests | None) -> None:
        super().__init__(file.location, file._path, file._filesystem, file._buffer_size)
        self._requests = requests

    def fetch(self, max_bytes: int) -> tuple[int, bytes | None] | None:
        """The size and, unless it is greater than `max_bytes`, the content; None if one request cannot get them."""
        answer = self._requests.get(self._path, max_bytes) if self._requests is not None else None
        return (answer.size, answer.data) if answer is not None and answer.size is not None else None

    def fetch_range(self, start: int, end: int) -> bytes | None:
        """The bytes from `start` to `end`, or fewer if the object ends before; None if one request cannot get them."""
        if self._requests is None or end <= start:
            return None
        answer = self._requests.get(self._path, end - start, span=(start, end))
        return answer.data if answer is not None else None

    def exists(self) -> bool:
        """Whether the object exists. Arrow would also look for a folder of this name."""
        exists = self._requests.exists(self._path) if self._requests is not None else None
        return super().exists() if exists is None else exists

    def open(self, seekable: bool = True) -> InputStream:
        """Open the object. Metadata files and manifests, which PyIceberg reads as a whole, come with one request."""
        if self.location.endswith(_METADATA_SUFFIXES):
            fetched = self.fetch(_MAX_METADATA_BYTES)
            if fetched is not None and fetched[1] is not None:
                return pa.BufferReader(fetched[1])  # type: ignore[no-any-return]
        return super().open(seekable)


class S3FileIO(PyArrowFileIO):
    """Objects in S3 storage. It takes the place of PyIceberg's PyArrowFileIO, whose properties it has."""

    def new_input(self, location: str) -> S3File:
        """An object for reading."""
        return S3File(super().new_input(location), self._requests(location))

    def new_output(self, location: str) -> S3File:
        """An object for writing."""
        return S3File(super().new_output(location), self._requests(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete an object. Arrow would leave an empty object in the place of its folder."""
        path = location if isinstance(location, str) else location.location
        requests = self._requests(path)
        if requests is None or not requests.delete(self.parse_location(path, self.properties)[2]):
            super().delete(location)

    def _requests(self, location: str) -> S3Requests | None:
        scheme, bucket, _ = self.parse_location(location, self.properties)
        made: dict[tuple[str, str], S3Requests | None] = self.__dict__.setdefault("_made", {})
        if (scheme, bucket) not in made:
            filesystem = self.fs_by_scheme(scheme, bucket)
            access = S3Access.of(filesystem) if isinstance(filesystem, S3FileSystem) else None
            made[scheme, bucket] = S3Requests(access) if access is not None else None
        return made[scheme, bucket]

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        filesystem = super()._initialize_fs(scheme, netloc)
        if not isinstance(filesystem, S3FileSystem) or S3_RETRY_STRATEGY_IMPL in self.properties:
            return filesystem  # the retry strategy is not among the options that Arrow gives back
        reconstruct, (options,) = filesystem.__reduce__()
        # Small objects are written with one PUT, instead of a multipart upload of one part.
        return reconstruct(options | {"allow_delayed_open": True})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_made"}
