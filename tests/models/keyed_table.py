"""A keyed table for trying out: random writers of every kind, and what a plain model says must be read from it."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import count, product
from random import Random
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression, EqualTo, Or
from pyiceberg.types import IcebergType, LongType

import pyarctic
from pyarctic.errors import Unsupported
from pyarctic.iceberg.commit import Change
from pyarctic.iceberg.storage import remove_quietly
from pyarctic.iceberg.transforms import partition_values
from pyarctic.iceberg.write import FileNames, FileTarget, NewFile
from pyarctic.tables import WriteMode
from pyarctic.tables.create import TableAdvice
from pyarctic.tables.format.change_columns import CHANGE_ACTION, FILE_OFFSET
from pyarctic.tables.format.file_names import FileKind
from pyarctic.tables.format.store_properties import BASE_BUCKETS, CHANGE_BUCKETS
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.table import Table
from pyarctic.tables.write.arrow_rows import fit_to_schema
from pyarctic.tables.write.base_writer import BaseWriter
from pyarctic.tables.write.fanout import Fanout
from pyarctic.tables.write.overwrite_scope import OverwriteScope
from pyarctic.tables.write.prepared import BaseWrite, CommitNote
from tests.models.key_versions import (
    KEYS,
    REGIONS,
    SELECTIONS,
    SPECS,
    ZONES,
    BaseState,
    Begun,
    Commit,
    Key,
    Place,
    Row,
    Rows,
    Version,
    latest_rows,
)

_TARGET = "write.target-file-size-bytes"


class ForeignFanout(Fanout):
    """Files with names as any Iceberg engine gives them, without offsets."""

    def _target(self, partition: tuple[Any, ...], node: int, kind: FileKind) -> FileTarget:  # noqa: ARG002
        metadata = self._view.metadata
        return FileTarget(
            metadata=metadata, io=self._view.io, spec_id=metadata.default_spec_id, partition=partition, names=FileNames()
        )


class KeyedModel:
    """One table, written to at random. Every step returns after its commit; `expected` tells what must be read then."""

    def __init__(self, name: str, random: Random, key: str | None = None, spec: str | None = None) -> None:
        self.name, self.random = name, random
        self.key_kind = key or random.choice(sorted(KEYS))
        key_schema, self._pools = KEYS[self.key_kind]
        kinds = [kind for kind in sorted(SPECS) if kind != "key" or self.key_kind in ("long", "string", "decimal", "date")]
        self.spec = spec or random.choice(kinds)
        self.keys = list(key_schema.names)
        self.types: dict[str, pa.DataType] = {
            "region": pa.string(),
            **{field.name: field.type for field in key_schema},
            "zone": pa.int32(),
            "number": pa.int32(),
            "must": pa.string(),
        }
        self.columns = {name: name for name in self.types}
        self.required = {*self.keys, "must"}
        self.commits: list[Commit] = []
        self.bases = [BaseState()]
        self.begun: list[Begun] = []
        self.log: list[str] = []
        self.in_order: dict[Place, Row] | None = {}
        """The rows when every step is applied to those of the step before; None once that is not the rule any more."""
        self.is_logged = True
        """Whether the changes alone make up the table."""
        self._loads = 0
        self._values = count(1)
        partition_by = [text.format(key=self.keys[0]) for text in SPECS[self.spec]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TableAdvice)
            created = pyarctic.create_table(name, self.arrow_schema(), self.keys, partition_by, self._properties())
        assert isinstance(created, KeyedTable)
        self.handles = [created, self.opened()]
        self.log.append(f"{self.key_kind} keys, partitioned by {self.spec}, {created.properties}")

    def _properties(self) -> dict[str, str]:
        return {
            CHANGE_BUCKETS: str(self.random.choice([1, 2, 4, 8])),
            BASE_BUCKETS: str(self.random.choice([1, 2, 4, 8])),
            _TARGET: str(self.random.choice([1, 1 << 20, 1 << 20, 1 << 20])),
            "write.parquet.row-group-limit": str(self.random.choice([1, 3, 1000])),
            "commit.retry.min-wait-ms": "1",
        }

    # What it looks like

    def opened(self) -> KeyedTable:
        table = pyarctic.table(self.name)
        assert isinstance(table, KeyedTable)
        return table

    def arrow_schema(self, columns: Iterable[str] | None = None) -> pa.Schema:
        chosen = self.columns if columns is None else columns
        return pa.schema([pa.field(self.columns[tag], self.types[tag], nullable=tag not in self.required) for tag in chosen])

    @property
    def base(self) -> BaseState:
        return self.bases[-1]

    def expected(self, upto: Commit | None = None) -> dict[Place, Row]:
        """The rows of the table: now, or as of a commit to the change store."""
        if upto is None:
            return latest_rows(self.base, self.commits)
        base = self.bases[upto.bases - 1]
        return latest_rows(base, [commit for commit in self.commits if commit.sequence <= upto.sequence])

    def shown(self, rows: Iterable[Row], columns: dict[str, str] | None = None) -> Rows:
        """Rows as they are read."""
        chosen = self.columns if columns is None else columns
        return Counter(tuple(row.get(tag) for tag in chosen) for row in rows)

    def places(self, rows: Sequence[Row]) -> list[Place]:
        """The partition and key of rows."""
        table = self.handles[0].refresh()
        batch = pa.RecordBatch.from_pylist([self._named(row) for row in rows], schema=self.arrow_schema())
        batch = fit_to_schema(batch, table.schema)
        codes, tuples = partition_values(table.view.metadata.spec(), table.schema, batch)
        return [
            (tuples[code], tuple(row[name] for name in self.keys)) for code, row in zip(codes.tolist(), rows, strict=True)
        ]

    def _named(self, row: Row) -> dict[str, Any]:
        return {name: row.get(tag) for tag, name in self.columns.items()}

    # Rows to write

    def key(self) -> Key:
        return tuple(self.random.choice(pool) for pool in self._pools)

    def row(self, key: Key | None = None) -> Row:
        random = self.random
        values = {
            "region": random.choice(REGIONS),
            "zone": random.choice(ZONES),
            "number": random.choice([None, *range(6)]),
            "must": f"m{next(self._values)}",
            **dict(zip(self.keys, key or self.key(), strict=True)),
        }
        others = {tag: random.choice([None, random.randint(0, 9)]) for tag in self.types if tag not in values}
        return {
            tag: str(value) if tag in others and value is not None and self.types[tag] == pa.string() else value
            for tag, value in (values | others).items()
            if tag in self.columns
        }

    def rows(self, most: int = 8) -> list[Row]:
        return [self.row() for _ in range(self.random.randint(0 if self.random.random() < 0.1 else 1, most))]

    def data(self, rows: Sequence[Row], actions: Sequence[str] | None = None, columns: Iterable[str] | None = None) -> Any:
        """Arrow data of some shape."""
        random = self.random
        schema = self.arrow_schema(columns)
        table = pa.Table.from_pylist([self._named(row) for row in rows], schema=schema)
        if actions is not None:
            table = table.append_column(CHANGE_ACTION.name, pa.array(actions, pa.string()))
        order = random.sample(table.column_names, table.num_columns)
        table = table.select(order)
        for index, field in enumerate(table.schema):
            if field.type == pa.string() and random.random() < 0.3:
                column = table.column(index)
                column = column.dictionary_encode() if random.random() < 0.5 else column.cast(pa.large_string())
                table = table.set_column(index, field.name, column)
        if random.random() < 0.5:
            return table
        size = random.randint(1, 5)
        return [table.slice(start, size).combine_chunks() for start in range(0, table.num_rows, size)]

    def handle(self) -> KeyedTable:
        """One of two, which do not know of each other's commits; sometimes opened again."""
        number = self.random.randrange(2)
        if self.random.random() < 0.2:
            self.handles[number] = self.opened()
        return self.handles[number]

    # Steps

    def insert(self) -> None:
        self._change("insert", [(row, "INSERT") for row in self.rows()])

    def upsert(self) -> None:
        self._change("upsert", [(row, "UPSERT") for row in self.rows()])

    def delete(self) -> None:
        """By rows that have no more than they need."""
        needed = [*self.keys, "must", "region", "zone"]
        columns = [tag for tag in self.columns if tag in needed] if self.random.random() < 0.5 else None
        self._change("delete", [(row, "DELETE") for row in self._some()], columns=columns)

    def _some(self) -> list[Row]:
        """Rows of which many are in the table."""
        known = list(self.expected().values())
        rows = self.rows()
        return [self.random.choice(known) if known and self.random.random() < 0.6 else row for row in rows]

    def cdc(self) -> None:
        changes: list[tuple[Row, str]] = []
        for row in self._some():
            match self.random.choice(["insert", "delete", "update", "update", "update", "move", "before", "after"]):
                case "insert":
                    changes.append((row, "INSERT"))
                case "delete":
                    changes.append((row, "DELETE"))
                case "before":
                    changes.append((row, "UPDATE_BEFORE"))
                case "after":
                    changes.append((row, "UPDATE_AFTER"))
                case "update":
                    after = self.row(tuple(row[name] for name in self.keys)) | {
                        tag: row[tag] for tag in ("region", "zone") if tag in row
                    }
                    changes += [(row, "UPDATE_BEFORE"), (after, "UPDATE_AFTER")]
                case "move":
                    after = self.row(tuple(row[name] for name in self.keys))
                    changes += [(row, "UPDATE_BEFORE"), (after, "UPDATE_AFTER")]
        self._change("cdc", changes)

    def _change(self, mode: WriteMode, changes: list[tuple[Row, str]], columns: list[str] | None = None) -> None:
        rows = [row for row, _ in changes]
        actions = [action for _, action in changes] if mode == "cdc" else None
        handle = self.handle()
        before = handle.refresh().change_store.view.snapshot_id if self.random.random() < 0.3 else None
        written = handle.write(self.data(rows, actions, columns), mode)
        self.log.append(f"{mode} {len(rows)} rows: {written} (after {before})")
        assert (written is None) == (not rows)
        key_changes: list[tuple[Place, Row | None]] = []
        for place, (row, action) in zip(self.places(rows), changes, strict=True):
            if action in ("DELETE", "UPDATE_BEFORE"):
                key_changes.append((place, None))
            else:
                key_changes.append((place, row))
        if written is not None:
            self._committed(written, key_changes)

    def upsert_across(self) -> None:
        self._across(self.rows(), arrives=True)

    def delete_across(self) -> None:
        self._across(self._some(), arrives=False)

    def _across(self, rows: list[Row], *, arrives: bool) -> None:
        now = set(self.expected())
        written = self.handle().write(self.data(rows), "upsert" if arrives else "delete", across_partitions=True)
        self.log.append(f"{'upsert' if arrives else 'delete'} {len(rows)} rows across partitions: {written}")
        key_changes: list[tuple[Place, Row | None]] = []
        for place, row in zip(self.places(rows), rows, strict=True):
            old = {known for known in now if known[1] == place[1]}
            key_changes += [(known, None) for known in old]
            now -= old
            if arrives:
                now.add(place)
                key_changes.append((place, row))
        if written is not None:
            self._committed(written, key_changes)
        else:
            assert not key_changes

    def _committed(
        self, snapshot_id: int, key_changes: Sequence[tuple[Place, Row | None]], transaction: int | None = None
    ) -> None:
        """Record the versions of a commit; they are in the order of their offsets."""
        snapshot = self.opened().change_store.view.metadata.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        sequence = snapshot.sequence_number or 0
        versions = tuple(
            Version(place=place, order=(transaction or sequence, number, row is not None), row=row)
            for number, (place, row) in enumerate(key_changes)
        )
        columns, bases = dict(self.columns), len(self.bases)
        commit = Commit(snapshot_id=snapshot_id, sequence=sequence, versions=versions, bases=bases, columns=columns)
        self.commits.append(commit)
        if self.in_order is not None:
            for place, row in key_changes:
                self.in_order.pop(place, None)
                if row is not None:
                    self.in_order[place] = row

    def overwrite(self) -> None:
        """All, the partitions of the rows, or those of a condition."""
        rows = self.rows()
        scope = self.random.choice(["table", "partitions", "partitions", "where", "where"])
        text, selects = None, lambda _: scope != "partitions"
        if scope == "where" and SELECTIONS[self.spec]:
            text, selects = self.random.choice(SELECTIONS[self.spec])
            rows = [row for row, (partition, _) in zip(rows, self.places(rows), strict=True) if selects(partition)]
        scope = "partitions" if scope == "partitions" else "table"
        where = self._now(text) if text else None
        try:
            written = self.handle().write(self.data(rows), "overwrite", replace=scope, where=where)  # type: ignore[arg-type]
        except Unsupported as refusal:
            assert "stands for null" in refusal.message  # noqa: PT017
            self._last_change()
            self.log.append(f"overwrite {scope} {where or ''} was refused")
            return
        self.log.append(f"overwrite {scope} {where or ''} with {len(rows)} rows: {written}")
        self._loaded(rows, selects, self._last_change())

    def _last_change(self) -> int:
        """Remember the newest snapshot of the change store, which has no rows; gives its sequence number."""
        snapshot = self.opened().change_store.view.metadata.current_snapshot()
        assert snapshot is not None
        self._committed(snapshot.snapshot_id, [])
        return snapshot.sequence_number or 0

    def _loaded(self, rows: list[Row], selects: Callable[[tuple[Any, ...]], bool], transaction: int) -> None:
        self._loads += 1
        self.is_logged = False
        new = dict(zip(self.places(rows), rows, strict=True))
        got = {partition for partition, _ in new}
        known = {place[0] for commit in self.commits for version in commit.versions for place in [version.place]}
        known |= {partition for partition, _ in self.base.rows}
        gone = got | {partition for partition in known if selects(partition)}
        kept = {place: row for place, row in self.base.rows.items() if place[0] not in gone}
        loaded = {place: (transaction, row) for place, row in new.items()}
        merged = self.base.merged | dict.fromkeys(gone, transaction)
        self.bases.append(BaseState(merged=merged, rows=kept | loaded))
        if self.in_order is not None:
            left = {place: row for place, row in self.in_order.items() if place[0] not in gone}
            self.in_order = left | new

    def _now(self, condition: str) -> str:
        """A condition with the columns' names of now."""
        return re.sub("region|zone", lambda found: self.columns[found[0]], condition)

    def evolve(self) -> None:
        handle = self.handle().refresh()
        number = next(self._values)
        match self.random.choice(["add", "add", "drop", "rename", "widen", "optional"]):
            case "add":
                choices: list[tuple[str | IcebergType, pa.DataType]] = [("string", pa.string()), (LongType(), pa.int64())]
                type_, arrow = self.random.choice(choices)
                handle.evolve(add={f"c{number}": type_})
                self.types[f"c{number}"] = arrow
                self.columns[f"c{number}"] = f"c{number}"
            case "drop":
                if not (free := [tag for tag in self.columns if tag.startswith("c") or tag == "number"]):
                    return
                tag = self.random.choice(free)
                handle.evolve(drop=[self.columns.pop(tag)])
            case "rename":
                free = [tag for tag in self.columns if tag not in self.keys]
                tag = self.random.choice(free)
                handle.evolve(rename={self.columns[tag]: f"{tag}_{number}"})
                self.columns[tag] = f"{tag}_{number}"
            case "widen":
                if self.types["number"] == pa.int64() or "number" not in self.columns:
                    return
                handle.evolve(widen={self.columns["number"]: "long"})
                self.types["number"] = pa.int64()
            case "optional":
                if "must" not in self.required:
                    return
                handle.evolve(optional=[self.columns["must"]])
                self.required.discard("must")
        self.log.append(f"evolved to {self.columns}")
        for other in self.handles:  # whoever does not know the schema cannot write
            if other is not handle:
                other.refresh()

    def change_buckets(self) -> None:
        """From now on files lie at other levels of the tree."""
        new = {name: str(self.random.choice([1, 2, 4, 8, 16])) for name in (CHANGE_BUCKETS, BASE_BUCKETS)}
        self.handle().refresh().set(new)
        self.log.append(f"buckets: {new}")
        for handle in self.handles:
            handle.refresh()

    def rewrite_manifests(self) -> None:
        """Merge the manifests of both stores; no row and no change is another one then."""
        report = self.opened().rewrite_manifests()
        self.log.append(f"manifests: {report.to_dict()}")

    def foreign_change(self) -> None:
        """Another engine appends rows to the change store as it would to any table."""
        rows = self.rows()
        store = self.handle().change_store
        store.refresh()
        if store.properties[_TARGET] == "1":  # of several files of one commit nobody knows the order
            rows = list(dict(zip(self.places(rows), rows, strict=True)).values())
        files = self._files(store, rows, ForeignFanout, "I")
        if files:
            committed = store.commit(Change(start=None, add=tuple(files)))
            self.log.append(f"{len(rows)} foreign changes: {committed.snapshot_id}")
            self._committed(committed.snapshot_id or 0, list(zip(self.places(rows), rows, strict=True)))

    def foreign_base(self) -> None:
        """Another engine appends rows to the base store; it is careful about those that are there."""
        rows = {}
        for row in self.rows():
            (place,) = self.places([row])
            if place not in self.base.rows:
                rows[place] = row
        handle = self.handle().refresh()
        files = self._files(handle, list(rows.values()), ForeignFanout, "B")
        if files:
            committed = handle.commit(Change(start=None, add=tuple(files)))
            self.log.append(f"{len(rows)} foreign base rows: {committed.snapshot_id}")
            added = {place: (0, row) for place, row in rows.items()}
            self.bases.append(replace(self.base, rows=self.base.rows | added))
            self.in_order, self.is_logged = None, False

    def _files(
        self, store: Table, rows: list[Row], fanout: type[Fanout], kind: FileKind, transaction: int = 0
    ) -> list[NewFile]:
        if not rows:
            return []
        batch = pa.RecordBatch.from_pylist([self._named(row) for row in rows], schema=self.arrow_schema())
        batch = fit_to_schema(batch, store.schema)
        with fanout(store.view, mask=self.random.choice([0, 1, 3, 7]), transaction_id=transaction) as out:
            out.write(batch, out.locate(batch), {kind: None})
        return out.files

    def begin(self) -> None:
        """Another engine begins a transaction."""
        transaction = self.handle()._begin()
        assert transaction == self._last_change()
        self.begun.append(Begun(id=transaction, loads=self._loads))
        self.log.append(f"transaction {transaction} begins")

    def finish(self) -> None:
        """A begun transaction commits, maybe after others with greater numbers."""
        if not self.begun:
            return
        begun = self.begun.pop(self.random.randrange(len(self.begun)))
        if begun.loads == self._loads and self.random.random() < 0.4:
            self._finish_load(begun.id)
        else:
            self._finish_changes(begun.id)
        self.in_order = None

    def _finish_load(self, transaction: int) -> None:
        rows = self.rows()
        handle = self.handle().refresh()
        scope = OverwriteScope(replace="partitions")
        files = BaseWriter(view=handle.view, scope=scope, transaction_id=transaction).files(self.data(rows))
        try:
            write = BaseWrite(handle, scope)
            write._transactions.append(transaction)
            change = write._plan(tuple(files), CommitNote())
        except Unsupported as refusal:
            assert "stands for null" in refusal.message  # noqa: PT017
            remove_quietly(handle.view.io, [file.path for file in files])
            return
        self.log.append(f"transaction {transaction} overwrites partitions with {len(rows)} rows")
        if change is not None:
            handle.commit(change)
            self._loaded(rows, lambda _: False, transaction)

    def _finish_changes(self, transaction: int) -> None:
        """Two tasks write; every key goes to one of them. Their offsets are not related."""
        store = self.handle().change_store
        store.refresh()
        key_changes: list[tuple[Place, Row | None]] = []
        files: list[NewFile] = []
        rows = self._some()
        odd = {key for row in rows if (key := self._key_of(row)) and self.random.random() < 0.3}
        for chosen in (True, False):
            own = [(row, self.random.random() < 0.7) for row in rows if (self._key_of(row) in odd) == chosen]
            if own:
                files += self._task(store, own, transaction)
                places = self.places([row for row, _ in own])
                key_changes += [(place, row if kept else None) for place, (row, kept) in zip(places, own, strict=True)]
        if files:
            committed = store.commit(Change(start=None, add=tuple(files)))
            self.log.append(f"transaction {transaction} commits {len(key_changes)} changes: {committed.snapshot_id}")
            self._committed(committed.snapshot_id or 0, key_changes, transaction)

    def _key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.keys)

    def _task(self, store: Table, rows: list[tuple[Row, bool]], transaction: int) -> list[NewFile]:
        mask = self.random.choice([0, 1, 3, 7])
        with Fanout(store.view, mask=mask, transaction_id=transaction, extra_fields=(FILE_OFFSET,)) as out:
            for number, (row, kept) in enumerate(rows, start=1):
                batch = pa.RecordBatch.from_pylist([self._named(row)], schema=self.arrow_schema())
                batch = fit_to_schema(batch, store.schema)
                out.write(batch, out.locate(batch), {"I" if kept else "ED": pa.array([number])})
        return out.files

    # Questions

    def all_keys(self) -> list[Key]:
        """Every key that a row may have."""
        return list(product(*self._pools))

    def key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.keys)

    def key_condition(self, keys: Sequence[Key]) -> BooleanExpression:
        """Only rows with these keys."""
        equal: Any = EqualTo  # its types do not declare positional arguments
        conditions = [reduce(And, map(equal, self.keys, key)) for key in keys]
        chosen: BooleanExpression = reduce(Or, conditions)
        return chosen

    def condition(self) -> tuple[str, Callable[[Row], bool]]:
        """A condition as text, and what it means."""
        random, names = self.random, self.columns
        (place,) = [self.key()]
        pick, region, zone = random.choice([1, 3, 5]), random.choice(["a", "b/ü"]), random.choice([0, 1])
        choices: list[tuple[str, Callable[[Row], bool]]] = [
            (f"{names['region']} = '{region}'", lambda row: row["region"] == region),
            (f"{names['region']} is null", lambda row: row["region"] is None),
            (f"{names['zone']} >= {zone}", lambda row: row["zone"] is not None and row["zone"] >= zone),
            (f"{names['must']} > 'm5'", lambda row: row["must"] > "m5"),
        ]
        if "number" in names:
            choices += [
                (f"{names['number']} < {pick}", lambda row: row.get("number") is not None and row["number"] < pick),
                (f"{names['number']} = {pick}", lambda row: row.get("number") == pick),
                (f"{names['number']} is null", lambda row: row.get("number") is None),
            ]
        if self.key_kind in ("long", "string"):
            text = repr(place[0])
            choices += [
                (f"id = {text}", lambda row: row["id"] == place[0]),
                (f"id > {text}", lambda row: bool(row["id"] > place[0])),
            ]
        first, second = random.choice(choices), random.choice(choices)
        if random.random() < 0.3:
            return f"({first[0]}) and ({second[0]})", lambda row: first[1](row) and second[1](row)
        return first


def tuples(batches: Iterable[pa.RecordBatch | pa.Table]) -> Rows:
    """Rows that were read."""
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())
