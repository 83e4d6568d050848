"""The commit: attempts until the catalog takes the change, and an answer that can be trusted.

An attempt loads the table, validates the change against it, writes metadata files and asks the catalog to swap. Whatever
happens, the snapshot id of the change tells whether it is in the table. If the catalog's answer is lost and the table has
not moved, the very same request is sent again: it can be taken only once, because it demands the branch where it was.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    UnauthorizedError,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pyarctic.errors import ArcticError, NotFound, Unavailable
from pyarctic.iceberg.catalog.loading import translate_catalog_errors
from pyarctic.iceberg.catalog.pyiceberg_patches import apply_hive_patch, apply_patches, staged_metadata
from pyarctic.iceberg.commit.change import (
    Change,
    Committed,
    Conflict,
    ManifestRewrite,
    Outcome,
    Rejected,
    RejectedCode,
    Unknown,
)
from pyarctic.iceberg.commit.request import Preparation, Request, foundation
from pyarctic.iceberg.commit.table_state import Refusal, TableState
from pyarctic.iceberg.manifest.file_list import FileList
from pyarctic.iceberg.manifest.reader import DELETES_MANIFEST, ManifestReader
from pyarctic.iceberg.storage import remove_quietly
from pyarctic.iceberg.write.manifest.manifest_files import MetadataFiles
from pyarctic.iceberg.write.properties import whole_property

CommitStep = Literal["loaded", "prepared", "sent", "answered", "cleaned"]
CommitListener = Callable[[CommitStep], None]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently to try again, as the table's properties say."""

    times: int
    least_wait: float
    most_wait: float
    total: float

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        properties = metadata.properties
        return cls(
            times=whole_property(properties, "commit.retry.num-retries", 4),
            least_wait=whole_property(properties, "commit.retry.min-wait-ms", 100) / 1000,
            most_wait=whole_property(properties, "commit.retry.max-wait-ms", 60_000) / 1000,
            total=whole_property(properties, "commit.retry.total-timeout-ms", 1_800_000) / 1000,
        )

    def pause(self, attempt: int) -> float:
        """Seconds to wait after an attempt: doubling, and never the same for two who collided."""
        longest = min(self.least_wait * 2 ** (attempt - 1), self.most_wait)
        return random.uniform(0.5 * longest, longest)  # noqa: S311  # no secret


def commit(
    table: Table,
    change: Change | ManifestRewrite,
    *,
    known: FileList | None = None,
    listen: CommitListener = lambda _: None,
) -> Outcome:
    """Apply a change to a table, atomically.

    `known` is a file list of the table, such as the one the change was planned with: manifests it has are not read again,
    and added files are looked for among all of them. `listen` is told every step.
    """
    apply_patches()
    apply_hive_patch()
    return _Commit(table, change, known, listen).run()


_MAYBE_OURS: tuple[RejectedCode, ...] = ("history-lost", "added-twice", "moved", "done-already")
_NOT_ALLOWED = (UnauthorizedError, ForbiddenError, BadRequestError, NoSuchTableError)


class _Commit:
    def __init__(
        self, table: Table, change: Change | ManifestRewrite, known: FileList | None, listen: CommitListener
    ) -> None:
        self._table = table
        self._change = change
        self._listen = listen
        self._io = table.io
        self._reader = known.reader(table.io) if known else ManifestReader(table.io)
        self._preparation = Preparation(MetadataFiles(table.metadata, table.io), thorough=known is not None)
        self._doubtful: Request | None = None
        """Sent, and not known to have failed or to have been taken."""
        self._in_doubt: set[str] = set()
        self._refused = False
        """The catalog refused the doubtful request. It is asked once more: one that repeats a request within takes it first
        and then refuses it, and nothing that its table needs may be removed."""
        self._staged: list[str] = []
        """Metadata files that the catalog's client wrote for attempts that came to nothing, as far as known."""
        self._attempts = 0

    def run(self) -> Outcome:
        retry = RetryPolicy.of(self._table.metadata)
        deadline = time.monotonic() + retry.total
        while True:
            self._attempts += 1
            try:
                outcome = self._attempt()
            except Unavailable as error:
                if self._doubtful is None:
                    self._clean(keep=frozenset())
                    raise
                outcome = self._unknown(error)
            except BaseException:
                if self._doubtful is None:
                    self._clean(keep=frozenset())
                raise
            last = self._attempts > retry.times or time.monotonic() > deadline
            if not isinstance(outcome, Conflict | Unknown) or last:
                break
            time.sleep(retry.pause(self._attempts))
        if isinstance(outcome, Conflict):
            found = self._confirmed()
            outcome = outcome if isinstance(found, Table) else found
        if isinstance(outcome, Conflict | Rejected):
            self._clean(keep=frozenset())
        self._listen("cleaned")
        return outcome

    def _attempt(self) -> Outcome:
        if self._attempts == 1 and self._is_fresh():
            try:
                return self._try(self._table)
            except ArcticError:  # it may have become old after all: credentials and snapshots expire
                if self._doubtful is not None:
                    raise
        table = self._load()
        return table if isinstance(table, Unknown | Rejected) else self._try(table)

    def _try(self, table: Table) -> Outcome:
        state = TableState(metadata=table.metadata, branch=self._change.branch, reader=self._reader)
        if (landed := self._landed(table.metadata)) is not None:
            return self._rolled_back() if state.has_left(landed) else self._committed(table)
        self._forget_refused(table)
        request = self._doubtful
        if request is None or request.built_on != foundation(state):
            try:
                request = self._preparation.request(self._change, state)
            except Refusal as refusal:
                if self._in_doubt and refusal.rejected.code in _MAYBE_OURS:
                    # The attempt whose answer was lost may have been taken, and its snapshot expired since: it may be the
                    # very reason of the refusal.
                    return self._unknown(refusal)
                return refusal.rejected
        self._listen("prepared")
        return self._send(table, request)

    def _is_fresh(self) -> bool:
        """An append to the very state it was planned on needs no newer one. If there is one, the catalog says so."""
        change = self._change
        ref = self._table.metadata.refs.get(change.branch)
        return isinstance(change, Change) and change.is_append and ref is not None and ref.snapshot_id == change.start

    def _load(self) -> Table | Unknown | Rejected:
        catalog, name = self._table.catalog, self._table.name()
        try:
            with translate_catalog_errors(catalog.name, ".".join((catalog.name, *name))):
                table = catalog.load_table(name)
        except NotFound:
            raise
        except ArcticError as error:
            if self._doubtful is None:
                raise
            return self._unknown(error)
        self._listen("loaded")
        # As it is now: during a long rewrite the credentials it was planned with may have expired.
        self._reader.io = self._io = table.io
        if table.metadata.table_uuid != self._table.metadata.table_uuid:
            if self._doubtful is not None:  # it may have got into the table that had the name before
                self._in_doubt |= self._doubtful.files
            return Rejected(
                code="replaced-table",
                reason="another table has the name now",
                hint="The table was dropped and created anew. Open it again and plan on it.",
            )
        return table

    def _confirmed(self) -> Table | Committed | Unknown | Rejected:
        """Make sure that the last attempt was refused indeed, before its files are removed: then the table without it."""
        table = self._load()
        if isinstance(table, Unknown | Rejected):
            return table
        if self._landed(table.metadata) is not None:
            return self._committed(table)
        self._forget_refused(table)
        return table

    def _rolled_back(self) -> Rejected:
        return Rejected(
            code="history-lost",
            reason=f"the change was committed as snapshot {self._change.snapshot_id}, and the branch was rolled back since",
            hint="Plan it anew on the current snapshot if it is still wanted.",
            has_landed=True,
        )

    def _forget_refused(self, table: Table) -> None:
        """The table was loaded, and the refused request is not in it."""
        if self._refused:
            self._refused = False
            self._doubtful = None
            if not self._in_doubt:
                self._remove_staged(table.metadata, table.metadata_location)

    def _send(self, table: Table, request: Request) -> Outcome:
        earlier, self._doubtful = self._doubtful, request
        with staged_metadata() as staged:
            try:
                response = table.catalog.commit_table(table, request.requirements, request.updates)
            except Unavailable:  # the metadata file could not be written, so the catalog was not asked
                self._doubtful = earlier
                raise
            except Exception as error:  # noqa: BLE001  # any failure but a plain conflict leaves the outcome open
                self._listen("sent")
                self._staged += staged
                self._refused = _is_conflict(error) or isinstance(error, _NOT_ALLOWED)
                if isinstance(error, _NOT_ALLOWED):
                    return self._not_allowed(error, request)
                if not self._refused:
                    self._in_doubt |= request.files
                    return self._unknown(error)
                return Conflict(reason=_one_line(error), attempts=self._attempts)
        self._listen("sent")
        with contextlib.suppress(Exception):  # as PyIceberg does: old metadata files that stay do no harm
            table.catalog._delete_old_metadata(table.io, table.metadata, response.metadata)
        return self._committed(response, request)

    def _landed(self, metadata: TableMetadata) -> Snapshot | None:
        return metadata.snapshot_by_id(self._change.snapshot_id)

    def _committed(self, found: Table | CommitTableResponse, request: Request | None = None) -> Committed:
        metadata = found.metadata
        snapshot = metadata.snapshot_by_id(self._change.snapshot_id)
        self._listen("answered")
        # With the change in the table no other attempt can be taken any more, whatever was in doubt.
        self._in_doubt = set()
        used = request.files if request else self._used_by(snapshot)
        self._clean(keep=used)
        self._remove_staged(metadata, found.metadata_location)
        summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        return Committed(
            snapshot_id=snapshot.snapshot_id if snapshot else None,
            metadata=metadata,
            attempts=self._attempts,
            rebased_rows=int(summary.get("arctic.rebased-rows", 0)),
            unused_files=tuple(sorted(self._vector_files() - used)),
        )

    def _vector_files(self) -> set[str]:
        return {file.path for file in self._change.add if file.is_vector} if isinstance(self._change, Change) else set()

    def _used_by(self, snapshot: Snapshot | None) -> frozenset[str]:
        """What of our files a snapshot needs that was found in the table: which attempt made it is not known."""
        if snapshot is None:
            return frozenset()
        manifests = self._reader.manifests(snapshot)
        ours = [m for m in manifests if m.added_snapshot_id == snapshot.snapshot_id and m.content == DELETES_MANIFEST]
        deletes = self._reader.files_of(ours)["file_path"]
        return frozenset([snapshot.manifest_list, *(m.path for m in manifests), *deletes])

    def _not_allowed(self, error: Exception, request: Request) -> Outcome:
        """The catalog understood, and does not want the commit: trying again would not help, unless the table has moved.
        Some servers call a sequence number that was taken a bad request."""
        found = self._confirmed()
        if not isinstance(found, Table):
            return found
        state = TableState(metadata=found.metadata, branch=self._change.branch, reader=self._reader)
        if foundation(state) != request.built_on:
            return Conflict(reason=_one_line(error), attempts=self._attempts)
        raise Unavailable(
            f"the catalog refused the commit: {_one_line(error)}",
            hint="Nothing was changed. Check the credentials and what they allow.",
        ) from error

    def _unknown(self, cause: Exception) -> Unknown:
        makes_snapshot = isinstance(self._change, ManifestRewrite) or self._change.changes_files
        snapshot_id = self._change.snapshot_id if makes_snapshot else None
        return Unknown(snapshot_id=snapshot_id, reason=_one_line(cause), attempts=self._attempts)

    def _clean(self, keep: frozenset[str]) -> None:
        """Remove what attempts wrote and no snapshot uses. Files of an attempt whose answer was lost always stay."""
        preparation = self._preparation
        stay = keep | self._in_doubt
        preparation.files.remove([path for path in preparation.files.written if path not in stay])
        remove_quietly(self._io, [path for path in preparation.rebased_files if path not in stay])

    def _remove_staged(self, metadata: TableMetadata, location: str) -> None:
        used = {location, *(entry.metadata_file for entry in metadata.metadata_log)}
        remove_quietly(self._io, [path for path in self._staged if path not in used])
        self._staged = []


def _is_conflict(error: Exception) -> bool:
    """True when the catalog certainly did not take the commit, because another one came first."""
    if isinstance(error, CommitFailedException):
        return True
    # Client-side catalogs notice a commit to another branch only by the numbers it took.
    text = str(error)
    return isinstance(error, ValueError) and (
        "sequence number" in text or "first row id" in text or "already exists" in text
    )


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
