"""The storage of a table during a long process: credentials that the catalog gives out are renewed before they expire."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile

from pyarctic.errors import ArcticError
from pyarctic.iceberg import AUTH_MANAGER
from pyarctic.tables import Table

RENEW_SECONDS = 60.0
"""Catalogs give out credentials for a quarter of an hour or more; loading a table takes less than a second."""


class RenewedStorage(FileIO):
    """The files of a table, with the credentials of its catalog as they are now. Only REST catalogs give out credentials:
    the table is loaded again for new ones. If the catalog or its token server does not answer, those from before are used
    on."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._io = table.view.io
        self._is_renewable = AUTH_MANAGER in self._io.properties
        self._header: str | None = None
        self._loaded_at = time.monotonic()
        self._lock = threading.Lock()

    @property
    def properties(self) -> dict[str, Any]:  # type: ignore[override]
        """The properties of the storage, with the current credentials."""
        properties = self.wrapped().properties
        return {**properties, AUTH_MANAGER: self} if self._is_renewable else properties

    def auth_header(self) -> str | None:
        """The current token of a catalog that signs requests; the one before if it cannot be renewed now."""
        try:
            self._header = self.wrapped().properties[AUTH_MANAGER].auth_header()
        except Exception:
            if self._header is None:
                raise
        return self._header

    def new_input(self, location: str) -> InputFile:
        """A file for reading."""
        return self.wrapped().new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """A file for writing."""
        return self.wrapped().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self.wrapped().delete(location)

    def wrapped(self) -> FileIO:
        """The storage with the current credentials."""
        if not self._is_renewable:
            return self._io
        with self._lock:
            if time.monotonic() - self._loaded_at >= RENEW_SECONDS:
                self._loaded_at = time.monotonic()
                with contextlib.suppress(ArcticError):
                    self._io = self._table.load_newest().io
            return self._io
