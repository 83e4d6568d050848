"""Random histories of a table, and the rows each state must have: the rules of deletes read out loud, row by row.

A `History` writes with `SpecTable` and keeps beside it a naive model: every data file with its rows, every delete with
what it says. `rows()` asks each row about each delete. Nothing here knows PyArctic; the same histories are put before
Iceberg Java (tests/spark/test_scan_random.py), which keeps model and writer honest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from pyiceberg.catalog import Catalog

from tests.models.spec.table import SpecFile, SpecTable

Draw = Callable[[st.SearchStrategy[Any]], Any]
Row = dict[int, Any]
"""Values by field id, so that a renamed column is the same and a dropped one is still there."""

COLUMNS = (("id", "int"), ("name", "string"), ("part", "string"))
INTEGERS = st.none() | st.integers(-1, 4)
TEXTS = st.none() | st.sampled_from(["", "a", "ab", "abc", "abd", "b", "zé"])
VALUES = {"int": INTEGERS, "long": INTEGERS, "string": TEXTS}
SPECS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("part", "identity"),),
    (("name", "identity"),),
    (("part", "identity"), ("id", "identity")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A live file of the model: the committed entry and what it says."""

    entry: SpecFile
    sequence: int
    rows: tuple[Row, ...] = ()
    dead: frozenset[tuple[str, int]] = frozenset()
    keys: tuple[Row, ...] = ()

    @property
    def place(self) -> tuple[int, tuple[Any, ...]]:
        return self.entry.spec_id, self.entry.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """A row that no delete hits."""

    path: str
    position: int
    row_id: int | None
    updated: int | None
    values: Row


@dataclass(slots=True)
class State:
    """The live files."""

    data: list[Held] = field(default_factory=list)
    positions: list[Held] = field(default_factory=list)
    vectors: list[Held] = field(default_factory=list)
    equality: list[Held] = field(default_factory=list)


class History:
    """A table and its model, changed by one random step after the other."""

    def __init__(
        self, draw: Draw, catalog: Catalog, identifier: str, folder: Path, *, version: int, promotions: bool = True
    ) -> None:
        self._draw = draw
        self._promotions = promotions
        self.table = SpecTable(catalog, identifier, folder, COLUMNS, version=version, partition=draw(st.sampled_from(SPECS)))
        self.table.block_size = draw(st.sampled_from([1, 16000]))
        self.table.avro_codec = draw(st.sampled_from(["null", "deflate", "snappy"]))
        self.state = State()
        self.snapshots: dict[int, tuple[tuple[str, ...], list[dict[str, Any]]]] = {}
        """Column names and rows of every snapshot, as it was when it was made."""
        self._late = 0

    # -- what must be read ---------------------------------------------------------------------------------------

    def live_batches(self) -> list[Living]:
        row_ids: dict[str, int] = {}
        for manifest in self.table.manifests:
            row_ids |= manifest.row_ids()
        return [
            Living(
                path=file.entry.path,
                position=position,
                row_id=None if file.entry.path not in row_ids else row_ids[file.entry.path] + position,
                updated=None if file.entry.path not in row_ids else file.sequence,
                values=values,
            )
            for file in self.state.data
            for position, values in enumerate(file.rows)
            if not self._is_dead(file, position, values)
        ]

    def _is_dead(self, file: Held, position: int, values: Row) -> bool:
        here = (file.entry.path, position)
        vector = next((v for v in self.state.vectors if v.entry.referenced == file.entry.path), None)
        if vector is not None:
            if here in vector.dead:
                return True
        else:
            for delete in self.state.positions:
                named = delete.entry.referenced or file.entry.path
                applies = delete.place == file.place and delete.sequence >= file.sequence and named == file.entry.path
                if applies and here in delete.dead:
                    return True
        for delete in self.state.equality:
            everywhere = not self._spec(delete.entry.spec_id)["fields"]
            if delete.sequence <= file.sequence or not (everywhere or delete.place == file.place):
                continue
            ids = delete.entry.equality_ids or ()
            if any(all(key.get(i) == values.get(i) for i in ids) for key in delete.keys):
                return True
        return False

    def rows(self) -> list[dict[str, Any]]:
        """The living rows with the names of today."""
        return [{f["name"]: row.values.get(f["id"]) for f in self.table.fields} for row in self.live_batches()]

    def names(self) -> tuple[str, ...]:
        return tuple(f["name"] for f in self.table.fields)

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> str:
        """Do one thing that makes sense now; its name is returned."""
        steps = [self.append, self.append, self.change_schema, self.change_spec]
        version = self.table.version
        if self.state.data:
            steps += [self.remove, self.rewrite]
            if version == 2:
                steps += [self.delete_positions, self.delete_positions]
            if version == 3:
                steps += [self.delete_by_vector, self.delete_by_vector]
        if version >= 2:
            steps += [self.delete_equal, self.delete_equal]
        if version < 3 and self.table.metadata["snapshots"]:
            steps.append(self.upgrade)
        if self.state.positions or self.state.equality:
            steps.append(self.drop_delete)
        chosen = self._draw(st.sampled_from(steps))
        chosen()
        return str(chosen.__name__)

    def append(self) -> None:
        """One or two files; maybe with deletes of the same commit, of which only those by position may hit them."""
        added = [self._new_data() for _ in range(self._draw(st.integers(1, 2)))]
        deletes: list[Held] = []
        if self.table.version >= 2 and self._draw(st.booleans()):
            deletes.append(self._new_equality(added))
            if self.table.version == 2:
                deletes.append(self._new_positions(added))
            else:
                deletes += self._new_vectors(added[:1])
        self._commit([*added, *deletes])

    def remove(self) -> None:
        file = self._draw(st.sampled_from(self.state.data))
        self._commit([], [file, *self._vectors_of([file])], operation="delete")

    def rewrite(self) -> None:
        """What is alive in some files of one partition, in a new file that keeps an old sequence number."""
        first = self._draw(st.sampled_from(self.state.data))
        old = [file for file in self.state.data if file.place == first.place][:2]
        alive = [row.values for row in self.live_batches() if row.path in {file.entry.path for file in old}]
        sequence = max(file.sequence for file in old) if self.table.version > 1 else None
        added = []
        if alive:
            entry = self._write(alive, first.place)
            # The new file holds today's columns only; what it is partitioned by can be told without it.
            kept = {f["id"] for f in self.table.fields} | {f["source-id"] for f in self._spec(first.place[0])["fields"]}
            rows = tuple({i: value for i, value in row.items() if i in kept} for row in alive)
            added = [Held(entry=replace(entry, sequence=sequence), sequence=sequence or 0, rows=rows)]
        self._commit(added, [*old, *self._vectors_of(old)], operation="replace")

    def delete_positions(self) -> None:
        first = self._draw(st.sampled_from(self.state.data))
        neighbours = [file for file in self.state.data if file.place == first.place]
        self._commit([self._new_positions(neighbours)], operation="delete")

    def delete_by_vector(self) -> None:
        count = self._draw(st.integers(1, 2))
        files = self._draw(st.permutations(self.state.data))[:count]
        self._commit(self._new_vectors(files), self._vectors_of(files), operation="delete")

    def delete_equal(self) -> None:
        self._commit([self._new_equality(self.state.data)], operation="delete")

    def drop_delete(self) -> None:
        gone = self._draw(st.sampled_from([*self.state.positions, *self.state.equality]))
        self._commit([], [gone], operation="replace")

    def upgrade(self) -> None:
        self.table.upgrade(self.table.version + 1)

    def change_spec(self) -> None:
        names = set(self.names())
        possible = [spec for spec in SPECS if {column for column, _ in spec} <= names]
        self.table.partition_by(*self._draw(st.sampled_from(possible)))

    def change_schema(self) -> None:
        fields = [dict(f) for f in self.table.fields]
        partitioned = {f["source-id"] for f in self._spec(self.table.metadata["default-spec-id"])["fields"]}
        changes = ["add", "rename"]
        droppable = [f for f in fields if f["id"] not in partitioned]
        if len(fields) > 2 and droppable:
            changes.append("drop")
        narrow = [f for f in fields if f["type"] == "int"]
        if narrow and self._promotions:
            changes.append("promote")
        match self._draw(st.sampled_from(changes)):
            case "add":
                self._late += 1
                type_ = self._draw(st.sampled_from(["int", "string"]))
                late = {"id": self.table.metadata["last-column-id"] + 1, "name": f"late{self._late}", "type": type_}
                fields.insert(self._draw(st.integers(0, len(fields))), {**late, "required": False})
            case "rename":
                self._late += 1
                self._draw(st.sampled_from(fields))["name"] = f"renamed{self._late}"
            case "drop":
                fields.remove(self._draw(st.sampled_from(droppable)))
            case "promote":
                self._draw(st.sampled_from(narrow))["type"] = "long"
        self.table.set_fields(fields)

    # -- files ---------------------------------------------------------------------------------------------------

    def _spec(self, spec_id: int) -> dict[str, Any]:
        return next(spec for spec in self.table.metadata["partition-specs"] if spec["spec-id"] == spec_id)

    def _type(self, field_id: int) -> str:
        schemas = reversed(self.table.metadata["schemas"])
        return next(str(f["type"]) for schema in schemas for f in schema["fields"] if f["id"] == field_id)

    def _partition(self, spec_id: int) -> tuple[Any, ...]:
        return tuple(self._draw(VALUES[self._type(f["source-id"])]) for f in self._spec(spec_id)["fields"])

    def _new_data(self) -> Held:
        spec_id = self.table.metadata["default-spec-id"]
        known = [file.entry.partition for file in self.state.data if file.entry.spec_id == spec_id]
        partition = self._draw(st.sampled_from(known)) if known and self._draw(st.booleans()) else self._partition(spec_id)
        rows = [
            {f["id"]: self._draw(VALUES[f["type"]]) for f in self.table.fields} for _ in range(self._draw(st.integers(1, 5)))
        ]
        fixed = dict(zip((f["source-id"] for f in self._spec(spec_id)["fields"]), partition, strict=True))
        rows = [row | fixed for row in rows]
        return Held(entry=self._write(rows, (spec_id, partition)), sequence=self._next(), rows=tuple(rows))

    def _write(self, rows: Sequence[Row], place: tuple[int, tuple[Any, ...]]) -> SpecFile:
        spec_id, partition = place
        by_id = {f["id"]: f["name"] for f in self.table.fields}
        sources = [by_id[f["source-id"]] for f in self._spec(spec_id)["fields"] if f["source-id"] in by_id]
        # A file may lack the columns it is partitioned by: migrated Hive tables do.
        left_out = sources if len(by_id) > len(sources) and self._draw(st.integers(0, 3)) == 0 else ()
        named = [{by_id[i]: value for i, value in row.items() if i in by_id} for row in rows]
        return self.table.data(
            named,
            partition,
            spec_id=spec_id,
            row_group_size=self._draw(st.sampled_from([2, 100])),
            bounds_length=self._draw(st.sampled_from([2, 16])),
            without=left_out,
        )

    def _new_positions(self, files: Sequence[Held]) -> Held:
        """About one file, told by its metadata in one of two ways, or about all of a partition."""
        like = files[0]
        scope = self._draw(st.sampled_from(["partition", "named", "bounds"]))
        about = [file for file in files if file.place == like.place] if scope == "partition" else [like]
        places = [(file.entry.path, position) for file in about for position in range(len(file.rows))]
        dead = self._draw(st.sets(st.sampled_from(places), min_size=1))
        entry = self.table.position_deletes(sorted(dead), like.entry, named=scope == "named")
        if scope == "bounds":
            bound = {2147483546: like.entry.path.encode()}
            entry = replace(entry, lower=bound, upper=bound)
        return Held(entry=entry, sequence=self._next(), dead=frozenset(dead))

    def _new_vectors(self, files: Sequence[Held]) -> list[Held]:
        """They need not repeat what an older vector or position delete file says: a vector replaces both."""
        dead = {f.entry.path: sorted(self._draw(st.sets(st.integers(0, len(f.rows) - 1), min_size=1))) for f in files}
        entries = self.table.vectors(dead, [file.entry for file in files])
        return [
            Held(entry=e, sequence=self._next(), dead=frozenset((str(e.referenced), p) for p in dead[str(e.referenced)]))
            for e in entries
        ]

    def _new_equality(self, files: Sequence[Held]) -> Held:
        """In any spec the table has had; its keys are often those of rows there are."""
        columns = self.table.fields
        chosen = self._draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2, unique_by=lambda f: int(f["id"])))
        spec_id = self._draw(st.sampled_from([spec["spec-id"] for spec in self.table.metadata["partition-specs"]]))
        partition = self._partition(spec_id)
        there = [file for file in files if file.entry.spec_id == spec_id]
        if there and self._draw(st.integers(0, 3)):
            partition = self._draw(st.sampled_from(there)).entry.partition
        existing = [row for file in files for row in file.rows]
        keys: list[Row] = []
        for _ in range(self._draw(st.integers(1, 3))):
            like = self._draw(st.sampled_from(existing)) if existing and self._draw(st.booleans()) else None
            keys.append({f["id"]: like.get(f["id"]) if like else self._draw(VALUES[f["type"]]) for f in chosen})
        by_id = {f["id"]: f["name"] for f in columns}
        named = [{by_id[i]: value for i, value in key.items()} for key in keys]
        entry = self.table.equality_deletes(named, partition, spec_id=spec_id)
        return Held(entry=entry, sequence=self._next(), keys=tuple(keys))

    def _vectors_of(self, files: Sequence[Held]) -> list[Held]:
        paths = {file.entry.path for file in files}
        return [vector for vector in self.state.vectors if vector.entry.referenced in paths]

    def _next(self) -> int:
        return len(self.table.metadata["snapshots"]) + 1 if self.table.version > 1 else 0

    def _commit(self, added: Sequence[Held], removed: Sequence[Held] = (), operation: str = "append") -> None:
        entries = [file.entry for file in added]
        snapshot = self.table.commit(*entries, removed=[file.entry for file in removed], operation=operation)
        gone = {id(file) for file in removed}
        for kind in (self.state.data, self.state.positions, self.state.vectors, self.state.equality):
            kind[:] = [file for file in kind if id(file) not in gone]
        for file in added:
            if file.entry.content == 0:
                self.state.data.append(file)
            elif file.entry.content == 2:
                self.state.equality.append(file)
            else:
                (self.state.vectors if file.entry.format == "PUFFIN" else self.state.positions).append(file)
        self.snapshots[snapshot] = (self.names(), self.rows())


# -- conditions ------------------------------------------------------------------------------------------------------

Truth = bool | None
Condition = tuple[str, Callable[[dict[str, Any]], Truth]]
"""A condition as text, and as a function of a row that knows SQL's third value."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "!=": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


def conditions(fields: Sequence[dict[str, Any]], *, prefixes: bool = True) -> st.SearchStrategy[Condition]:
    """Random conditions on the columns of a schema; `prefixes`: also LIKE."""
    leaves = st.sampled_from(list(fields)).flatmap(lambda column: _leaf(column, prefixes))
    return st.one_of(leaves, _compound(leaves), _compound(_compound(leaves)))


def _leaf(column: dict[str, Any], prefixes: bool) -> st.SearchStrategy[Condition]:
    name = column["name"]
    literal = st.sampled_from(["a", "ab", "abc", "b", "zé", "ac"]) if column["type"] == "string" else st.integers(-2, 5)
    options = [
        st.just((f"{name} is null", lambda row: row[name] is None)),
        st.just((f"{name} is not null", lambda row: row[name] is not None)),
        st.builds(lambda op, value: _comparison(name, op, value), st.sampled_from(sorted(_COMPARE)), literal),
        st.builds(lambda values, no: _membership(name, values, no), st.sets(literal, min_size=1, max_size=3), st.booleans()),
    ]
    if prefixes and column["type"] == "string":
        options.append(
            st.builds(lambda prefix, no: _prefix(name, prefix, no), st.sampled_from(["a", "ab", "z"]), st.booleans())
        )
    return st.one_of(options)


def _text(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _comparison(name: str, operator: str, value: Any) -> Condition:
    def holds(row: dict[str, Any]) -> Truth:
        return None if row[name] is None else _COMPARE[operator](row[name], value)

    return f"{name} {operator} {_text(value)}", holds


def _membership(name: str, values: set[Any], negated: bool) -> Condition:
    def holds(row: dict[str, Any]) -> Truth:
        return None if row[name] is None else (row[name] in values) != negated

    return f"{name} {'not ' if negated else ''}in ({', '.join(map(_text, sorted(values)))})", holds


def _prefix(name: str, prefix: str, negated: bool) -> Condition:
    def holds(row: dict[str, Any]) -> Truth:
        return None if row[name] is None else row[name].startswith(prefix) != negated

    return f"{name} {'not ' if negated else ''}like '{prefix}%'", holds


def _compound(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    return st.one_of(st.builds(_negation, inner), st.builds(_both, inner, inner), st.builds(_either, inner, inner))


def _negation(one: Condition) -> Condition:
    def holds(row: dict[str, Any]) -> Truth:
        truth = one[1](row)
        return None if truth is None else not truth

    return f"not ({one[0]})", holds


def _both(one: Condition, other: Condition) -> Condition:
    def holds(row: dict[str, Any]) -> Truth:
        truths = (one[1](row), other[1](row))
        return False if False in truths else None if None in truths else True

    return f"({one[0]}) and ({other[0]})", holds


def _either(one: Condition, other: Condition) -> Condition:
    def holds(row: dict[str, Any]) -> Truth:
        truths = (one[1](row), other[1](row))
        return True if True in truths else None if None in truths else False

    return f"({one[0]}) or ({other[0]})", holds
