"""Tables that are written all the time, for `arctic dev`: each commit leaves small files behind."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyarctic.errors import ArcticError
from pyarctic.logs import get_logger

if TYPE_CHECKING:
    from pyarctic.tables import Table

_log = get_logger(__name__)
CATALOG = "dev"
_PAUSE_SECONDS = 0.6
_ROWS = 200
_CUSTOMERS = 5_000
_ORDERS = 20_000
_REGIONS = ("apac", "emea", "latam")
_PROPERTIES: Mapping[str, str] = {
    # Small tables need optimizing only after many commits: these need it every few seconds.
    "self-optimizing.minor.trigger.file-count": "8",
    "self-optimizing.commit-interval": "0",
}
Columns = dict[str, list[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """A table, and what is written to it."""

    name: str
    columns: Mapping[str, str]
    """Names and Iceberg types."""
    key: str | None = None
    partition_by: Sequence[str] = ()
    is_native: bool = False
    make: Callable[[random.Random], Columns]
    """Some rows; those of a keyed table are upserts."""

    def create(self) -> Table:
        """Create the table, unless it exists."""
        import pyarctic
        from pyarctic.tables import TableAdvice, schema_of

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TableAdvice)
            return pyarctic.create_table(
                self.name,
                schema_of([(name, kind, name == self.key) for name, kind in self.columns.items()]),
                [] if self.key is None else [self.key],
                self.partition_by,
                _PROPERTIES,
                format="iceberg" if self.is_native else "mixed-iceberg",
                if_not_exists=True,
            )


def _orders(chance: random.Random) -> Columns:
    keys = sorted(chance.sample(range(_ORDERS), _ROWS))
    regions: list[object] = [_REGIONS[key % len(_REGIONS)] for key in keys]
    return {"id": [*keys], "region": regions, "amount": [chance.randrange(1000) for _ in keys]}


def _customers(chance: random.Random) -> Columns:
    keys = sorted(chance.sample(range(_CUSTOMERS), _ROWS // 4))
    return {"id": [*keys], "score": [chance.random() for _ in keys]}


def _clicks(chance: random.Random) -> Columns:
    countries: list[object] = [chance.choice(("no", "pe", "vn")) for _ in range(_ROWS)]
    return {"country": countries, "page": [f"/page/{chance.randrange(50)}" for _ in countries]}


def _measures(chance: random.Random) -> Columns:
    return {"sensor": [chance.randrange(100) for _ in range(_ROWS)], "value": [chance.random() for _ in range(_ROWS)]}


SAMPLES = (
    SampleTable(
        name=f"{CATALOG}.shop.orders",
        columns={"id": "long", "region": "string", "amount": "long"},
        key="id",
        partition_by=["region"],
        make=_orders,
    ),
    SampleTable(name=f"{CATALOG}.shop.customers", columns={"id": "long", "score": "double"}, key="id", make=_customers),
    SampleTable(
        name=f"{CATALOG}.web.clicks",
        columns={"country": "string", "page": "string"},
        partition_by=["country"],
        is_native=True,
        make=_clicks,
    ),
    SampleTable(name=f"{CATALOG}.ops.measures", columns={"sensor": "long", "value": "double"}, make=_measures),
)


class SampleWriter:
    """Writes to one of the tables, commit after commit, in a thread."""

    def __init__(self, sample: SampleTable) -> None:
        self.commits = 0
        self._sample = sample
        self._table = sample.create()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"arctic-sample-{sample.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the commit that is going on."""
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random()  # noqa: S311  # values of samples
        while not self._is_stopped.wait(_PAUSE_SECONDS):
            data = self._sample.make(chance)
            try:
                self._table.write(data, mode="insert" if self._sample.key is None else "upsert")
                self.commits += 1
            except ArcticError as error:  # commits of others were faster: it is only a sample
                _log.warning("sample_not_written", table=self._sample.name, reason=str(error))
