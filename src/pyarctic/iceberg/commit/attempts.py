"""Committing a change: attempts until the catalog accepts it, with a reliable outcome.

An attempt loads the table, validates the change against it, writes metadata files and sends the request to the catalog. The
snapshot id of the change always tells whether it is in the table. If the catalog's response is lost and the table has not
changed, the same request is sent again: it can succeed only once, because it requires the branch at its old snapshot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Literal

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

from pyarctic.errors import ArcticError, Damaged, NotFound, Unavailable, Unsupported, UsageError
from pyarctic.errors import Conflict as ConflictError
from pyarctic.iceberg.catalog.loading import translate_catalog_errors
from pyarctic.iceberg.catalog.pyiceberg_patches import apply_catalog_patches, apply_patches, staged_metadata
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
from pyarctic.iceberg.commit.conflict_rollback import rollback_targets
from pyarctic.iceberg.commit.request import Request, RequestBuilder, StateVersion, state_version
from pyarctic.iceberg.commit.retry import RetryPolicy
from pyarctic.iceberg.commit.table_state import ChangeRejected, TableState
from pyarctic.iceberg.manifest.file_list import FileList, ManifestReader
from pyarctic.iceberg.manifest.reader import DELETES_MANIFEST
from pyarctic.iceberg.storage import remove_quietly
from pyarctic.iceberg.write.commit_names import new_file_id
from pyarctic.iceberg.write.manifest.manifest_files import MetadataFiles

CommitStep = Literal["loaded", "prepared", "sent", "answered", "cleaned"]
CommitListener = Callable[[CommitStep], None]
BeforeSend = Callable[[int | None], None]


def commit(
    table: Table,
    change: Change | ManifestRewrite,
    *,
    known: FileList | None = None,
    listen: CommitListener = lambda _: None,
    before_send: BeforeSend = lambda _: None,
) -> Outcome:
    """Apply a change to a table, atomically.

        outcome = commit(table, Change(start=snapshot_id, add=(new_file,)))

    `known` is a file list of the table, such as the one the change was planned with: its manifests are not read again, and
    added files are checked against all files of the table. `listen` is called with every step, and
    `before_send` before every request with the head of the branch that it requires: if that raises, nothing is sent.
    """
    apply_patches()
    apply_catalog_patches()
    return _Commit(table, change, known, listen, before_send).run()


_POSSIBLY_OUR_COMMIT: tuple[RejectedCode, ...] = ("history-lost", "added-twice", "moved", "done-already")
"""Rejections that an earlier attempt with unknown outcome may itself have caused."""
_PERMANENT_ERRORS = (UnauthorizedError, ForbiddenError, BadRequestError, NoSuchTableError)


class _Commit:
    """The attempts of one commit."""

    def __init__(
        self,
        table: Table,
        change: Change | ManifestRewrite,
        known: FileList | None,
        listen: CommitListener,
        before_send: BeforeSend,
    ) -> None:
        self._table = table
        self._change = change
        self._notify = listen
        self._before_send = before_send
        self._io = table.io
        self._reader = known.reader(table.io) if known else ManifestReader(table.io)
        files = MetadataFiles(table.metadata, table.io, change.names_of)
        self._builder = RequestBuilder(files, check_all_files=known is not None)
        self._pending_request: Request | None = None
        """A request that was sent and is not known to have failed or succeeded."""
        self._files_in_doubt: set[str] = set()
        """Files of requests with unknown outcome, which must not be removed."""
        self._heads_in_doubt: set[int | None] = set()
        """The heads those requests were built on: while the branch is at one of them, a request may still be accepted."""
        self._version: StateVersion | None = None
        """The state of the table as it was loaded last."""
        self._possible_heads: set[int | None] = set()
        """The head of the branch in that state, and those that a catalog, or somebody else, may bring it back to."""
        self._pending_was_refused = False
        """The catalog refused the pending request. The table is loaded once more to confirm it: a catalog that repeats
        requests internally may have accepted it first and then refused it, and files of the table must not be removed."""
        self._staged_files: list[str] = []
        """Metadata files that the catalog's client wrote for attempts that failed, as far as known."""
        self._attempts = 0
        self._failures = 0
        """Attempts since the last one that lost a race, with the present one: the catalog did not answer, or refused though
        nobody else has committed."""
        self._races = 0
        """Attempts that lost a race."""
        self._sent_on: str | None = None
        """The metadata file that the last request was built on."""

    def run(self) -> Outcome:
        """Attempt to commit until there is an outcome or the retries are exhausted, then remove unused files."""
        retry = RetryPolicy.of(self._table.metadata)
        while True:
            self._attempts += 1
            self._failures += 1
            try:
                outcome = self._attempt()
            except (Unavailable, UsageError, Unsupported, Damaged, ConflictError) as error:
                if self._pending_request is None and not self._may_be_accepted_late():
                    self._remove_unused(keep=frozenset())
                    raise
                outcome = self._unknown_outcome(error)
            except BaseException:
                if self._pending_request is None:
                    self._remove_unused(keep=frozenset())
                raise
            if not isinstance(outcome, Conflict | Unknown) or retry.ends_after(self._attempts, self._failures):
                break
            self._wait(retry, outcome)
        if isinstance(outcome, Conflict):
            confirmed = self._confirm_refused()
            outcome = outcome if isinstance(confirmed, Table) else confirmed
        match outcome:
            case Conflict() | Rejected(may_have_landed=False) if self._may_be_accepted_late():
                outcome = Unknown(snapshot_id=self._snapshot_id, reason=outcome.reason, attempts=self._attempts)
        if isinstance(outcome, Conflict | Rejected):
            self._remove_unused(keep=frozenset())
        self._notify("cleaned")
        return outcome

    def _wait(self, retry: RetryPolicy, outcome: Conflict | Unknown) -> None:
        """Wait before the next attempt. A refused append that was tried without loading the table is tried at once."""
        if isinstance(outcome, Unknown) or self._failures > 1:
            time.sleep(retry.wait_after_failure(self._failures))
        elif self._races or not self._can_skip_loading():
            time.sleep(retry.wait_after_lost_race(self._races + 1))

    def _may_be_accepted_late(self) -> bool:
        """Whether a request without a response may still be on its way: the branch has not moved since it was built, or only
        in ways that may be undone."""
        return bool(self._heads_in_doubt) and (self._version is None or bool(self._heads_in_doubt & self._possible_heads))

    def _attempt(self) -> Outcome:
        if self._attempts == 1 and self._can_skip_loading():
            try:
                return self._try(self._table)
            except ArcticError:  # the table may be outdated: credentials and snapshots expire
                if self._pending_request is not None:
                    raise
        table = self._load()
        return table if isinstance(table, Unknown | Rejected) else self._try(table)

    def _try(self, table: Table) -> Outcome:
        state = self._state_of(table)
        if (snapshot := self._committed_snapshot(table.metadata)) is not None:
            return self._rolled_back_outcome() if state.has_left(snapshot) else self._record_committed(table)
        self._drop_refused_request(table)
        request = self._pending_request
        if request is None or request.built_on != state_version(state):
            try:
                request = self._builder.build(self._change, state)
            except ChangeRejected as error:
                if self._files_in_doubt and error.rejected.code in _POSSIBLY_OUR_COMMIT:
                    # An attempt whose response was lost may have succeeded, and its snapshot expired since: it may itself
                    # be the reason of the rejection.
                    return self._unknown_outcome(error)
                return error.rejected
        self._notify("prepared")
        self._before_send(request.built_on.head)
        return self._send(table, request)

    def _state_of(self, table: Table) -> TableState:
        state = TableState(metadata=table.metadata, branch=self._change.branch, reader=self._reader)
        self._version = state_version(state)
        self._possible_heads = _snapshot_ids(rollback_targets(table.metadata, state.parent))
        if table.metadata.format_version == 1:  # without sequence numbers a late request is good wherever its head is
            self._possible_heads |= _snapshot_ids(table.metadata.snapshots)
        return state

    def _can_skip_loading(self) -> bool:
        """Whether the table need not be loaded: an append is first tried on the state it was planned on. If the table has
        changed, the catalog refuses it."""
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
            if self._pending_request is None:
                raise
            return self._unknown_outcome(error)
        self._notify("loaded")
        # The old credentials may have expired during a long rewrite.
        self._reader.io = self._io = table.io
        if table.metadata.table_uuid != self._table.metadata.table_uuid:
            if self._pending_request is not None:  # it may have been committed to the table that had the name before
                self._files_in_doubt |= self._pending_request.files
            return Rejected(
                code="replaced-table",
                reason="another table has the name now",
                hint="The table was dropped and created again. Open it again and plan the change on it.",
                may_have_landed=bool(self._files_in_doubt),
            )
        return table

    def _confirm_refused(self) -> Table | Committed | Unknown | Rejected:
        """Load the table to confirm that the last attempt was refused, before its files are removed. Returns the table if
        so, or else the outcome."""
        table = self._load()
        if isinstance(table, Unknown | Rejected):
            return table
        if self._committed_snapshot(table.metadata) is not None:
            return self._record_committed(table)
        self._state_of(table)
        self._drop_refused_request(table)
        return table

    def _rolled_back_outcome(self) -> Rejected:
        return Rejected(
            code="history-lost",
            reason=f"the change was committed as snapshot {self._change.snapshot_id}, and the branch was rolled back since",
            hint="Plan it again on the current snapshot if it is still wanted.",
            may_have_landed=True,
        )

    def _drop_refused_request(self, table: Table) -> None:
        """Forget a refused request after the table was loaded and does not have it."""
        if self._pending_was_refused:
            self._pending_was_refused = False
            self._pending_request = None
            if table.metadata_location != self._sent_on:
                self._races, self._failures = self._races + 1, 1
            if not self._files_in_doubt:
                self._remove_staged(table.metadata, table.metadata_location)

    def _send(self, table: Table, request: Request) -> Outcome:
        previous, self._pending_request = self._pending_request, request
        self._sent_on = table.metadata_location
        with staged_metadata(lambda: new_file_id(self._change.names_of)) as staged:
            try:
                response = table.catalog.commit_table(table, request.requirements, request.updates)
            except Unavailable:  # the metadata file could not be written, so the catalog was not called
                self._pending_request = previous
                raise
            except Exception as error:  # noqa: BLE001  # after any failure but a conflict the outcome is unknown
                self._notify("sent")
                self._staged_files += staged
                self._pending_was_refused = _is_conflict(error) or isinstance(error, _PERMANENT_ERRORS)
                if isinstance(error, _PERMANENT_ERRORS):
                    return self._handle_permanent_error(error, request)
                if not self._pending_was_refused:
                    self._files_in_doubt |= request.files
                    self._heads_in_doubt.add(request.built_on.head)
                    return self._unknown_outcome(error)
                return Conflict(reason=_one_line(error), attempts=self._attempts)
        self._notify("sent")
        with contextlib.suppress(Exception):  # as in PyIceberg: old metadata files that stay do no harm
            table.catalog._delete_old_metadata(table.io, table.metadata, response.metadata)
        return self._record_committed(response, request)

    def _committed_snapshot(self, metadata: TableMetadata) -> Snapshot | None:
        """The snapshot of the change, if it is in the table."""
        return metadata.snapshot_by_id(self._change.snapshot_id)

    def _record_committed(self, loaded: Table | CommitTableResponse, request: Request | None = None) -> Committed:
        metadata = loaded.metadata
        snapshot = metadata.snapshot_by_id(self._change.snapshot_id)
        self._notify("answered")
        head = metadata.snapshot_by_name(self._change.branch)
        if not self._heads_in_doubt & _snapshot_ids(rollback_targets(metadata, head)):
            # With the change in the table no other attempt can succeed any more.
            self._files_in_doubt, self._heads_in_doubt = set(), set()
        used_files = request.files if request else self._files_used_by(snapshot)
        self._remove_unused(keep=used_files)
        self._remove_staged(metadata, loaded.metadata_location)
        summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        return Committed(
            snapshot_id=snapshot.snapshot_id if snapshot else None,
            metadata=metadata,
            attempts=self._attempts,
            rebased_rows=int(summary.get("arctic.rebased-rows", 0)),
            unused_files=tuple(sorted(self._vector_paths() - used_files)),
        )

    def _vector_paths(self) -> set[str]:
        return {file.path for file in self._change.add if file.is_vector} if isinstance(self._change, Change) else set()

    def _files_used_by(self, snapshot: Snapshot | None) -> frozenset[str]:
        """The files of this commit that a snapshot found in the table needs. Which attempt made it is not known."""
        if snapshot is None:
            return frozenset()
        manifests = self._reader.manifests(snapshot)
        delete_manifests = [
            m for m in manifests if m.added_snapshot_id == snapshot.snapshot_id and m.content == DELETES_MANIFEST
        ]
        deletes = self._reader.files_of(delete_manifests)["file_path"]
        return frozenset([snapshot.manifest_list, *(m.path for m in manifests), *deletes])

    def _handle_permanent_error(self, error: Exception, request: Request) -> Outcome:
        """The catalog refused the commit permanently: retrying would not help, unless the table has changed. Some servers
        report a sequence number that is already taken as a bad request."""
        confirmed = self._confirm_refused()
        if not isinstance(confirmed, Table):
            return confirmed
        if self._version != request.built_on:
            return Conflict(reason=_one_line(error), attempts=self._attempts)
        raise Unavailable(
            f"the catalog refused the commit: {_one_line(error)}",
            hint="Nothing was changed. Check the credentials and their permissions.",
        ) from error

    def _unknown_outcome(self, cause: Exception) -> Unknown:
        return Unknown(snapshot_id=self._snapshot_id, reason=_one_line(cause), attempts=self._attempts)

    @property
    def _snapshot_id(self) -> int | None:
        """The id of the snapshot that the change makes, if it makes one."""
        makes_snapshot = isinstance(self._change, ManifestRewrite) or self._change.changes_files
        return self._change.snapshot_id if makes_snapshot else None

    def _remove_unused(self, keep: frozenset[str]) -> None:
        """Remove files that the attempts wrote and no snapshot uses. Files of attempts with unknown outcome always stay."""
        builder = self._builder
        kept = keep | self._files_in_doubt
        builder.files.remove([path for path in builder.files.written if path not in kept])
        remove_quietly(self._io, [path for path in builder.rebased_files if path not in kept])

    def _remove_staged(self, metadata: TableMetadata, location: str) -> None:
        used = {location, *(entry.metadata_file for entry in metadata.metadata_log)}
        remove_quietly(self._io, [path for path in self._staged_files if path not in used])
        self._staged_files = []


def _snapshot_ids(snapshots: Iterable[Snapshot | None]) -> set[int | None]:
    return {snapshot.snapshot_id if snapshot else None for snapshot in snapshots}


def _is_conflict(error: Exception) -> bool:
    """Whether the commit certainly failed because of a concurrent commit."""
    if isinstance(error, CommitFailedException):
        return True
    # Client-side catalogs notice a commit to another branch only by the numbers it used.
    text = str(error)
    return isinstance(error, ValueError) and (
        "sequence number" in text or "first row id" in text or "already exists" in text
    )


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
