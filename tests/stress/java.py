"""Iceberg Java as one of the writers, in Spark SQL."""

from __future__ import annotations

import time
from collections.abc import Iterable
from random import Random

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.stress.arena import RANGE, Arena, may_be_deleted, partition_of

NUMBER = 20
"""Rows from here on anybody may delete; those of the next number only Java itself changes."""
_TRIES = 8
# Java does not plan anew when others replaced a file it deletes from, or deleted from the same file: its caller must.
_EXPECTED = ("ValidationException", "CommitFailedException")


class JavaWriter:
    def __init__(self, arena: Arena, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._table = f"{catalog}.{arena.table}"
        self._diary = arena.diary("java")
        self._random = Random(NUMBER)
        self._made = 0
        self._mine: set[int] = set()

    def warm_up(self) -> None:
        """The first statement of each kind takes seconds."""
        for act in (self._insert, self._delete, self._merge):
            act()

    def act(self) -> None:
        self._random.choice([self._insert, self._delete, self._delete, self._merge])()
        time.sleep(self._random.uniform(0, 0.4))

    def rows(self) -> dict[int, str]:
        found = self._spark.sql(f"select id, p, v from {self._table}").toArrow().to_pylist()
        assert all(row["p"] == partition_of(row["id"]) for row in found)
        values = {row["id"]: row["v"] for row in found}
        assert len(values) == len(found)
        return values

    def _insert(self) -> None:
        count = self._random.randint(5, 20)
        first = NUMBER * RANGE + self._made
        self._made += count
        values = {key: f"java {key}" for key in range(first, first + count)}
        if tries := self._run(f"insert into {self._table} values {_rows(values.items())}"):
            self._diary.write("committed", put=values, attempts=tries)

    def _delete(self) -> None:
        alive = self._spark.sql(f"select id from {self._table}").toArrow()["id"].to_pylist()
        some = [key for key in alive if may_be_deleted(key)]
        chosen = self._random.sample(some, min(len(some), 4))
        if chosen and (tries := self._run(f"delete from {self._table} where id in ({', '.join(map(str, chosen))})")):
            self._diary.write("committed", dead=chosen, attempts=tries)

    def _merge(self) -> None:
        self._made += 1
        keys = [(NUMBER + 1) * RANGE + place for place in self._random.sample(range(40), 4)]
        values = dict.fromkeys(keys, f"merge {self._made}")
        tries = self._run(
            f"merge into {self._table} t using (select * from values {_rows(values.items())} as x(id, p, v)) s "
            "on t.id = s.id when matched then update set * when not matched then insert *"
        )
        if tries:
            self._diary.write("committed", put=values, attempts=tries)

    def _run(self, statement: str) -> int:
        """How many tries it took; 0 if it did not succeed and changed nothing."""
        for number in range(1, _TRIES + 1):
            try:
                self._spark.sql(statement)
            except (Py4JJavaError, PySparkException) as error:
                if not any(name in str(error) for name in _EXPECTED):
                    raise
                time.sleep(self._random.uniform(0, 0.2))
            else:
                return number
        self._diary.write("rejected", code="java-gave-up", attempts=_TRIES)
        return 0


def _rows(values: Iterable[tuple[int, str]]) -> str:
    return ", ".join(f"(bigint({key}), {partition_of(key)}, '{value}')" for key, value in values)
