"""PyArctic's commits and Iceberg Java's in random turns on one table: after every turn both see the rows of a model.

`HISTORIES=50` tries fifty histories of every table instead of one; `FIRST_HISTORY` says where to begin.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Generic, TypeVar

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from pyarctic.iceberg.commit import Committed, Rejected, commit
from tests.oracle.javaturns import JavaTurns
from tests.oracle.ourturns import OurTurns, Turn, assert_rejected_rightly
from tests.oracle.session import Oracle
from tests.oracle.sharedtable import MERGE_ON_READ, Layout, Row, SharedTable
from tests.services.rest import RestServer

pytestmark = pytest.mark.jvm

FIRST = int(os.environ.get("FIRST_HISTORY", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("HISTORIES", "1")))
STEPS = 15 if "HISTORIES" in os.environ else 10
_numbers = count(1)
history_log = logging.getLogger(__name__)  # pytest shows it when a test fails
history_log.setLevel(logging.INFO)

Card = TypeVar("Card")
Plan = Callable[[Table, str], Turn | None]


class Deck(Generic[Card]):
    """Cards in random order, shuffled anew when all were drawn: no kind of turn is left out for long."""

    def __init__(self, random: Random, cards: list[Card]) -> None:
        self._random, self._cards = random, cards
        self._left: list[Card] = []

    def draw(self) -> Card:
        self._left = self._left or self._random.sample(self._cards, len(self._cards))
        return self._left.pop()


class History:
    """Turns at random. Some of ours wait while others have theirs: then they must be rebased, or rejected for a reason."""

    def __init__(self, shared: SharedTable, version: int, seed: str) -> None:
        self._shared = shared
        self._version = version
        self._random = Random(seed)
        self._ids = count(1)
        self._waiting: list[Turn] = []
        told: dict[str, Any] = {"shared": shared, "random": self._random, "fresh": self._fresh}
        self._ours, java = OurTurns(**told), JavaTurns(**told)
        self._our_deck = Deck(self._random, self._our_cards())
        self._statements = Deck(self._random, [java.insert, java.delete, java.update, java.merge])
        procedures = [java.rewrite_data_files, java.rewrite_manifests, java.expire_snapshots, java.make_branch]
        if version > 1:
            procedures += [java.rewrite_position_delete_files, java.upgrade]
        self._procedures = Deck(self._random, procedures)

    def _our_cards(self) -> list[Plan]:
        ours = self._ours
        cards: list[Plan] = [ours.append, ours.append_and_set_properties, ours.remove_files, ours.overwrite]
        cards += [ours.rewrite, ours.rewrite, ours.rewrite_manifests]
        if self._version > 1:
            cards += [ours.equality_delete, ours.global_equality_delete, ours.convert, ours.remove_unused_deletes]
            cards += [ours.position_delete, ours.position_delete, ours.larger_vector]
        return cards

    def _fresh(self, number: int) -> list[Row]:
        ids = [next(self._ids) for _ in range(number)]
        return [(key, self._random.choice([0, 0, 1, 1, None]), f"{self._random.choice('ab')}{key}") for key in ids]

    def begin(self, layout: Layout, *, by_java: bool, properties: dict[str, str]) -> None:
        self._shared.create(layout, self._version, by_java=by_java, properties=properties)
        self._commit(self._ours.append(self._shared.load(), "main"))
        if layout == "identity":
            self._shared.partition(by_java=by_java)
        self._commit(self._ours.append(self._shared.load(), "main"))

    def step(self) -> None:
        if self._waiting and self._random.random() < 0.3:
            self._commit(self._waiting.pop(0), waited=True)
        elif self._random.random() < 0.6:
            self._our_step()
        else:
            self._java_step()

    def end(self) -> None:
        while self._waiting:
            self._commit(self._waiting.pop(0), waited=True)
        self._shared.check()

    def _our_step(self) -> None:
        table, branch = self._shared.load(), self._branch()
        turn = None
        while turn is None:
            turn = self._our_deck.draw()(table, branch)
        if turn.can_wait and len(self._waiting) < 3 and self._random.random() < 0.5:
            history_log.info(f"planned on {branch}: {turn.name}")
            self._waiting.append(turn)
        else:
            self._commit(turn)

    def _java_step(self) -> None:
        branch = self._branch()
        if self._random.random() < 0.6:
            history_log.info(f"Java on {branch}: {self._statements.draw()(branch)}")
            self._shared.check(branch)
        else:
            history_log.info(f"Java: {self._procedures.draw()()}")
            self._shared.check()

    def _branch(self) -> str:
        return self._random.choice(["main", *self._shared.rows])

    def _commit(self, turn: Turn, *, waited: bool = False) -> None:
        branch = turn.change.branch
        outcome = commit(self._shared.load(), turn.change)
        if waited and isinstance(outcome, Rejected):
            history_log.info(f"on {branch}: {turn.name}: rejected, {outcome.code}")
            assert_rejected_rightly(self._shared.load(), turn.change, outcome)
            return
        assert isinstance(outcome, Committed), (turn.name, outcome)
        moved = f", {outcome.rebased_rows} rows rebased" if outcome.rebased_rows else ""
        history_log.info(f"on {branch}: {turn.name}{', late' if waited else ''}{moved}")
        turn.effect(self._shared.rows[branch])
        self._shared.check_summary(branch)
        self._shared.check(branch)


def play(shared: SharedTable, layout: Layout, version: int, seed: int, *, by_java: bool, steps: int = STEPS) -> None:
    history = History(shared, version, f"{layout}-{version}-{seed}")
    # Position delete files of whole partitions are found by other rules than those of single files.
    granularity = "partition" if layout == "identity" else "file"
    modes = MERGE_ON_READ if version > 1 else {}
    history.begin(layout, by_java=by_java, properties={**modes, "write.delete.granularity": granularity})
    for _ in range(steps):
        history.step()
    history.end()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("layout", "version"),
    [("whole", 1), ("whole", 2), ("whole", 3), ("identity", 2), ("identity", 3), ("hashed", 2), ("hashed", 3)],
)
def test_turns(oracle: Oracle, layout: Layout, version: int, seed: int) -> None:
    name = f"{oracle.namespace()}.t"
    shared = SharedTable(oracle, oracle.catalog, oracle.name, name)
    play(shared, layout, version, seed, by_java=(version + seed + (layout == "hashed")) % 2 == 0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("layout", "version"), [("identity", 2), ("hashed", 3)])
def test_turns_over_rest(oracle: Oracle, rest_server: RestServer, layout: Layout, version: int, seed: int) -> None:
    name, namespace = "restlab", f"n{next(_numbers)}"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": rest_server.uri,
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        oracle.spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    with load_catalog(name, type="rest", uri=rest_server.uri) as catalog:
        catalog.create_namespace(namespace)
        shared = SharedTable(oracle, catalog, name, f"{namespace}.t")
        play(shared, layout, version, seed + 1000, by_java=(version + seed) % 2 == 0, steps=STEPS // 2)
