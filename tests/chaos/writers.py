"""Writers, each in a thread of its own with ids of its own, who know what must be in the table."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

import pyarctic
from pyarctic.iceberg.commit import Change, Committed, Unknown, commit
from pyarctic.iceberg.storage import remove_quietly
from tests.chaos.lake import KEYED, PARTITIONS, read, rows_of
from tests.support import changes

_RANGE = 1_000_000
_KEYS = 40
"""So many keys a writer of a keyed table changes again and again."""


class Writer:
    """Writes to one table. `lock` is held while it does, so that others may compare its rows with `model`."""

    def __init__(self, table: str, number: int, seed: str, pause: float) -> None:
        self.table = table
        self.model: dict[int, str] = {}
        self.lock = threading.Lock()
        self.commits = 0
        self.conflicts = 0
        self.unknown = 0
        self.faults: list[str] = []
        self._number = number
        self._pause = pause
        self._random = Random(f"{seed} {table} {number}")
        self._made = 0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer {table} {number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()

    def join(self) -> bool:
        self._thread.join(120)
        return not self._thread.is_alive()

    def is_own(self, key: int) -> bool:
        return key // _RANGE == self._number

    def _run(self) -> None:
        act = self._change_keyed if self.table in KEYED else self._change_native
        while not self._is_stopped.is_set():
            begin = time.monotonic()
            try:
                with self.lock:
                    act()
            except Exception:  # noqa: BLE001  # told in the end
                self.faults.append(f"a writer of {self.table}: {traceback.format_exc()}")
                return
            # On a slow machine all rest longer: those whose commits take longest would never get one in.
            self._is_stopped.wait(self._random.uniform(0.5, 1.5) * max(self._pause, time.monotonic() - begin))

    # ---- keyed ----------------------------------------------------------------------------------------------------------

    def _change_keyed(self) -> None:
        first = self._number * _RANGE
        keys = [first + key for key in self._random.sample(range(_KEYS), self._random.randint(1, 6))]
        self._made += 1
        draw = self._random.random()
        known = [key for key in keys if key in self.model]
        if draw < 0.55 or not known:
            self._write(rows_of(dict.fromkeys(keys, f"text {self._made}")), "upsert", put=keys)
        elif draw < 0.75:
            self._write(rows_of({key: self.model[key] for key in known}), "delete", dead=known)
        else:  # a capture of changes: some rows change, others go
            gone, kept = known[: len(known) // 2 + 1], known[len(known) // 2 + 1 :]
            rows = [
                rows_of({key: self.model[key] for key in [*gone, *kept]}),
                rows_of(dict.fromkeys(kept, f"text {self._made}")),
            ]
            actions = ["DELETE"] * len(gone) + ["UPDATE_BEFORE"] * len(kept) + ["UPDATE_AFTER"] * len(kept)
            data = pa.concat_tables(rows).append_column("_change_action", pa.array(actions))
            self._write(data, "cdc", put=kept, dead=gone)

    def _write(self, data: pa.Table, mode: str, *, put: list[int] | None = None, dead: list[int] | None = None) -> None:
        after = dict(self.model)
        after.update(dict.fromkeys(put or (), f"text {self._made}"))
        for key in dead or ():
            del after[key]
        try:
            pyarctic.table(self.table).write(data, mode)  # type: ignore[arg-type]
        except pyarctic.errors.ArcticError:
            self._resolve(after)
        else:
            self._note(after)

    # ---- native ---------------------------------------------------------------------------------------------------------

    def _change_native(self) -> None:
        draw = self._random.random()
        if draw < 0.5 or len(self.model) < 10:
            self._append()
        elif draw < 0.75:
            self._delete()
        else:
            self._upsert()

    def _append(self) -> None:
        count = self._random.randint(3, 15)
        first = self._number * _RANGE + self._made
        self._made += count
        values = {key: f"row {key}" for key in range(first, first + count)}
        self._commit(partial(_append, values=values), {**self.model, **values})

    def _delete(self) -> None:
        dead = self._random.sample([*self.model], self._random.randint(1, 4))
        after = {key: text for key, text in self.model.items() if key not in dead}
        self._commit(partial(_delete, keys=dead), after)

    def _upsert(self) -> None:
        self._made += 1
        values = dict.fromkeys(self._random.sample([*self.model], self._random.randint(1, 4)), f"change {self._made}")
        self._commit(partial(_upsert, values=values), {**self.model, **values})

    def _commit(self, make: Callable[[Table], Change | None], after: dict[int, str]) -> None:
        for _ in range(20):
            table = self._load()
            change = make(table)
            if change is None:
                raise AssertionError(f"rows of {self.table} are lost: {make}")
            outcome = commit(table, change)
            if isinstance(outcome, Committed):
                remove_quietly(table.io, outcome.unused_files)
                self._note(after)
                return
            if isinstance(outcome, Unknown):
                self._resolve(after)
                return
            remove_quietly(table.io, {file.path for file in change.add})
            self.conflicts += 1
            if self._is_stopped.is_set():
                return

    def _load(self) -> Table:
        return pyarctic.table(self.table)._loaded

    # ---- what became of it ----------------------------------------------------------------------------------------------

    def _note(self, after: dict[int, str]) -> None:
        self.commits += 1
        self.model = after

    def _resolve(self, after: dict[int, str]) -> None:
        """The outcome is not known: the table tells."""
        self.unknown += 1
        found = {key: text for key, text in read(self.table).items() if self.is_own(key)}
        if found == after:
            self._note(after)
        elif found != self.model:
            raise AssertionError(f"{self.table}: neither before nor after a write: {_difference(found, self.model)}")


def _append(table: Table, values: dict[int, str]) -> Change:
    return changes.append(table, rows_of(values))


def _delete(table: Table, keys: list[int]) -> Change | None:
    found = changes.rows(table, ["id", *changes.ORIGIN])
    found = found.filter(pc.is_in(found["id"], pa.array(keys, pa.int64())))
    return changes.position_delete_of(table, found.select(changes.ORIGIN)) if found.num_rows == len(keys) else None


def _upsert(table: Table, values: dict[int, str]) -> Change:
    """Equality deletes of older rows, and new ones in the same snapshot."""
    written = changes.write_data(table, rows_of(values))
    for part in range(PARTITIONS):
        keys = [key for key in values if key % PARTITIONS == part]
        if keys:
            written += changes.equality_delete(table, pa.table({"id": pa.array(keys, pa.int64())}), (part,)).add
    return Change(start=changes.head(table), add=tuple(written))


def _difference(found: dict[int, str], wanted: dict[int, str]) -> dict[int, tuple[str | None, str | None]]:
    keys = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    return {key: (found.get(key), wanted.get(key)) for key in keys[:10]}


def compare(table: str, writers: list[Writer]) -> list[str]:
    """Whether the rows of a table are what its writers know; they wait meanwhile."""
    for writer in writers:
        writer.lock.acquire()
    try:
        wanted = {key: text for writer in writers for key, text in writer.model.items()}
        found = read(table)
    finally:
        for writer in writers:
            writer.lock.release()
    return [] if found == wanted else [f"rows of {table} differ (found, wanted): {_difference(found, wanted)}"]
