"""The lease: one holder at a time, and who has lost it changes nothing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyarctic.ams.rows import TaskRow
from pyarctic.ams.store import GuardedStore, SqlStore, Store
from pyarctic.errors import NotLeading
from tests.support.ams_rows import task
from tests.support.stores import DATABASES, DatabaseUrls, fresh_database

LONG, SHORT = 60.0, 0.2
A, B = ("a", "http://a"), ("b", "http://b")


def test_nobody_leads_at_first(store: Store) -> None:
    lease = store.lease()
    assert (lease.number, lease.holder, lease.url) == (0, "", "")
    assert lease.seconds <= 0


def test_the_first_to_ask_leads(store: Store) -> None:
    lease = store.hold_lease(*A, LONG)
    assert (lease.number, lease.holder, lease.url) == (1, *A)
    for found in (store.hold_lease(*B, LONG), store.lease()):
        assert (found.number, found.holder, found.url) == (1, *A)
        assert LONG - 30 < found.seconds <= LONG


def test_the_holder_prolongs_it(store: Store) -> None:
    store.hold_lease(*A, SHORT)
    assert store.hold_lease(*A, LONG).number == 1
    time.sleep(SHORT)
    assert store.hold_lease(*B, LONG).holder == "a"


def test_when_it_has_ended_another_takes_it(store: Store) -> None:
    store.hold_lease(*A, SHORT)
    time.sleep(SHORT * 1.5)
    assert store.lease().seconds <= 0
    lease = store.hold_lease(*B, LONG)
    assert (lease.number, lease.holder) == (2, "b")
    assert store.hold_lease(*A, LONG).holder == "b"


def test_a_late_holder_goes_on_if_nobody_has_taken_it(store: Store) -> None:
    store.hold_lease(*A, SHORT)
    time.sleep(SHORT * 1.5)
    assert store.hold_lease(*A, LONG).number == 1


def test_what_is_released_is_free(store: Store) -> None:
    number = store.hold_lease(*A, LONG).number
    store.release_lease(number)
    assert store.lease().holder == ""
    assert store.hold_lease(*B, LONG).number == 2
    store.release_lease(number)
    assert store.lease().holder == "b", "the lease of another holder is not released"


def test_only_the_holder_writes(store: Store) -> None:
    guarded = GuardedStore(store, store.hold_lease(*A, SHORT).number)
    with guarded.begin() as transaction:
        transaction.insert(task(1))
    time.sleep(SHORT * 1.5)
    with guarded.begin() as transaction:  # nobody has taken it
        transaction.insert(task(2))
    store.hold_lease(*B, LONG)
    with pytest.raises(NotLeading) as refused, guarded.begin() as transaction:
        transaction.insert(task(3))
    assert refused.value.facts["leader"] == "http://b"
    with guarded.read() as view:
        assert [row.number for row in view.find(TaskRow)] == [1, 2]
    with store.begin() as transaction:  # without a lease
        transaction.insert(task(4))


@pytest.mark.parametrize("kind", DATABASES)
def test_of_many_that_ask_at_once_one_leads(kind: str, database_urls: DatabaseUrls) -> None:
    with fresh_database(kind, database_urls) as url:
        stores = [SqlStore.open(url) for _ in range(6)]
        with ThreadPoolExecutor(len(stores)) as pool:
            asked = list(pool.map(lambda each: stores[each].hold_lease(f"h{each}", "u", LONG), range(len(stores))))
        assert len({lease.holder for lease in asked}) == 1
        assert {lease.number for lease in asked} == {1}
        for store in stores:
            store.close()


@pytest.mark.parametrize("kind", DATABASES)
def test_a_transaction_that_is_going_on_keeps_others_from_the_lease(kind: str, database_urls: DatabaseUrls) -> None:
    """So what it writes is written before anything that the next holder does."""
    with fresh_database(kind, database_urls) as url:
        first, second = SqlStore.open(url), SqlStore.open(url)
        number = first.hold_lease(*A, SHORT).number
        with ThreadPoolExecutor(1) as pool:
            with first.begin(number) as transaction:
                transaction.insert(task(1))
                asked = pool.submit(second.hold_lease, *B, LONG)
                time.sleep(SHORT * 2)
                assert not asked.done()
                transaction.insert(task(2))
            assert asked.result().holder == "b"
        with second.read() as view:
            assert len(view.find(TaskRow)) == 2
        first.close()
        second.close()
