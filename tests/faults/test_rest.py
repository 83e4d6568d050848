"""The commit through a real REST catalog behind a proxy that spoils requests and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches
from pyarctic.iceberg.commit import Change, Committed, Conflict, ManifestRewrite, Unknown, commit
from tests.faults.lab import QUICK, SCHEMA, SPEC, Kind, content, make_change, some_rows
from tests.services.faulty import Fault, FaultyProxy, delayed, lost, refused, repeated, reset
from tests.services.rest import RestServer
from tests.support import changes
from tests.support.integrity import leftovers_of_ours, missing, row_ids_differ, sequence_numbers_differ, untrue_totals

pytestmark = pytest.mark.jvm

kinds = pytest.mark.parametrize(("kind", "version"), [("append", 2), ("rebase", 3)])


@pytest.fixture
def direct(rest_server: RestServer) -> Iterator[Catalog]:
    apply_patches()
    with load_catalog("direct", type="rest", uri=rest_server.uri) as catalog:
        yield catalog


@pytest.fixture
def through_proxy(faulty_rest: FaultyProxy) -> Iterator[Catalog]:
    with load_catalog("faulty", type="rest", uri=faulty_rest.uri) as catalog:
        yield catalog


def make_table(catalog: Catalog, version: int, **properties: str) -> Table:
    namespace = f"ns_{uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    told = {"format-version": str(version), **QUICK, **properties}
    table = catalog.create_table(f"{namespace}.t", SCHEMA, partition_spec=SPEC, properties=told)
    for ids in (range(6), range(10, 16)):
        table = changes.apply(table, lambda t, ids=ids: changes.append(t, some_rows(*ids)))  # type: ignore[misc]
    return changes.apply(table, lambda t: changes.position_delete(t, "id in (0, 1)"))


def check(
    direct: Catalog, table: Table, change: Change | ManifestRewrite, *, landed: bool = True, clean: bool = True
) -> Table:
    found = direct.load_table(table.name())
    assert missing(found) == []
    assert untrue_totals(found) == []
    assert sequence_numbers_differ(found)
    assert [snapshot.snapshot_id for snapshot in found.metadata.snapshots].count(change.snapshot_id) == landed
    assert not clean or leftovers_of_ours(found, change) == []
    assert found.format_version == 2 or row_ids_differ(found)
    content(found)
    return found


FAULTS: list[tuple[list[Fault], int]] = [
    *(([refused(status)], 2) for status in (409, 500, 502, 503, 504)),
    *(([lost(status)], 2) for status in (409, 500, 502, 503, 504)),
    ([reset()], 2),
    ([reset(arrived=False)], 2),
    ([delayed(0.5)], 1),
    ([repeated()], 2),
    ([refused(503), refused(409), reset(arrived=False), lost(502)], 5),
]


@kinds
@pytest.mark.parametrize(("faults", "attempts"), FAULTS)
def test_the_commit_gets_through_once(
    direct: Catalog, through_proxy: Catalog, faulty_rest: FaultyProxy, kind: Kind, version: int,
    faults: Sequence[Fault], attempts: int,
) -> None:  # fmt: skip
    table = make_table(direct, version)
    change = make_change(table, kind)
    faulty_rest.plan(faults)
    outcome = commit(through_proxy.load_table(table.name()), change)
    assert faulty_rest.left == 0
    assert isinstance(outcome, Committed)
    assert outcome.attempts == attempts
    found = check(direct, table, change)
    assert {key for key, _ in content(found)} >= ({100, 101} if kind == "append" else {2, 3})


@kinds
@pytest.mark.parametrize("fault", [lost(409), repeated()], ids=["lost", "repeated"])
def test_a_conflict_at_the_last_attempt_about_a_commit_that_was_taken(
    direct: Catalog, through_proxy: Catalog, faulty_rest: FaultyProxy, kind: Kind, version: int, fault: Fault
) -> None:
    table = make_table(direct, version, **{"commit.retry.num-retries": "0"})
    change = make_change(table, kind)
    faulty_rest.plan([fault])
    assert isinstance(commit(through_proxy.load_table(table.name()), change), Committed)
    check(direct, table, change)


@kinds
def test_a_commit_that_arrives_after_its_answer_was_given_up(
    direct: Catalog, through_proxy: Catalog, faulty_rest: FaultyProxy, kind: Kind, version: int
) -> None:
    table = make_table(direct, version, **{"commit.retry.num-retries": "1"})
    change = make_change(table, kind)
    faulty_rest.plan([refused(504), refused(504)])
    outcome = commit(through_proxy.load_table(table.name()), change)
    assert isinstance(outcome, Unknown)
    check(direct, table, change, landed=False, clean=False)
    # All that it needed is still there, so the request may yet arrive; here the change is committed again instead.
    assert isinstance(commit(through_proxy.load_table(table.name()), change), Committed)
    check(direct, table, change, clean=False)


def test_true_conflicts_are_told_as_such_and_leave_nothing(
    direct: Catalog, through_proxy: Catalog, faulty_rest: FaultyProxy
) -> None:
    table = make_table(direct, 2, **{"commit.retry.num-retries": "2"})
    change = make_change(table, "manifests")
    faulty_rest.plan([refused(409)] * 3)
    outcome = commit(through_proxy.load_table(table.name()), change)
    assert isinstance(outcome, Conflict)
    check(direct, table, change, landed=False)


@pytest.mark.parametrize("version", [2, 3])
def test_a_number_that_a_commit_to_another_branch_took(
    direct: Catalog, through_proxy: Catalog, faulty_rest: FaultyProxy, version: int
) -> None:
    table = make_table(direct, version)
    change = make_change(table, "append")

    def other(step: str) -> None:
        if step == "prepared" and not other_done:
            other_done.append(step)
            to_branch = Change(start=None, add=tuple(changes.write_data(table, some_rows(300))), branch="audit")
            assert isinstance(commit(direct.load_table(table.name()), to_branch), Committed)

    other_done: list[str] = []
    outcome = commit(through_proxy.load_table(table.name()), change, listen=other)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 2
    check(direct, table, change)
