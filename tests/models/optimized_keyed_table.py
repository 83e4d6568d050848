"""A keyed table that is optimized while others write to it; the model learns how far it is merged, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.manifest.file_list import IS_DATA
from pyarctic.tables.format.file_names import StorePaths, parse_file_names
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.store_properties import BASE_BUCKETS
from pyarctic.tables.format.tree import Node
from pyarctic.tables.keyed_table import KeyedTable
from tests.models.key_versions import AFTER_ALL, BaseState, Place, Row
from tests.models.keyed_table import KeyedModel, tuples
from tests.support import changes
from tests.support.amoro import sequences_for_amoro
from tests.support.integrity import leftovers, local, missing, untrue_totals

Step = Callable[[], None]
_NAMED = r"/(\d+)-PD-\d+-\d{5}-"


class OptimizedKeyedModel(KeyedModel):
    """Every step begins with what was merged before it, and ends with a look at all rows."""

    abandoned = 0
    """Transactions that were begun and will never be committed."""
    is_roomy: bool
    """Whether sizes are such that no file reaches them: then what is small does not depend on footers."""

    def _properties(self) -> dict[str, str]:
        random = self.random
        target = random.choice([600, 3 << 10, 6 << 10, 1 << 20, 1 << 20])
        task = random.choice([1, 4 << 10, 1 << 20, 1 << 20])
        self.is_roomy = min(target, task) >= 1 << 20
        chosen = super()._properties() | {
            "self-optimizing.target-size": str(target),
            "self-optimizing.fragment-ratio": str(random.choice([1, 2, 8])),
            "self-optimizing.max-task-size-bytes": str(task),
            "self-optimizing.minor.trigger.file-count": str(random.choice([1, 3])),
            "self-optimizing.major.trigger.delete-size-lowest": "1",
            "self-optimizing.full.trigger.position-delete-size": str(random.choice([100, 1 << 20])),
            "self-optimizing.sort-on-rewrite": random.choice(["true", "false"]),
            "self-optimizing.share-insert-files": random.choice(["true", "false"]),
            "write.delete.granularity": random.choice(["file", "partition"]),
            "commit.manifest.min-count-to-merge": str(random.choice([2, 3, 100])),
            "write.metadata.metrics.default": random.choice(["none", "truncate(2)", "truncate(16)", "full"]),
        }
        if random.random() < 0.4:
            del chosen[BASE_BUCKETS]
        return chosen

    def play(self, step: Step) -> None:
        """A step, and whether the table is what it should be then."""
        self.learn()
        step()
        self.learn()
        self.check()

    def learn(self) -> None:
        """Take over how far the table is merged. That goes forward only, and changes no row of the table."""
        before, expected = self.base, self.expected()
        merged = self._merged()
        assert all(merged[partition] >= number for partition, number in before.merged.items() if partition in merged)
        moved = {partition: number for partition, number in merged.items() if number > before.merged.get(partition, 0)}
        if not moved:
            return
        latest: dict[Place, tuple[tuple[int, int, int], Row | None]] = {
            place: ((transaction, AFTER_ALL, 1), row) for place, (transaction, row) in before.rows.items()
        }
        for commit in self.commits:
            for version in commit.versions:
                partition = version.place[0]
                is_new = before.merged.get(partition, 0) < commit.sequence <= moved.get(partition, 0)
                if is_new and (version.place not in latest or version.order > latest[version.place][0]):
                    latest[version.place] = version.order, version.row
        rows = {place: (order[0], row) for place, (order, row) in latest.items() if row is not None}
        self.bases.append(BaseState(merged=before.merged | moved, rows=rows))
        assert self.expected() == expected

    def _merged(self) -> dict[tuple[Any, ...], int]:
        table = self.opened()
        paths, spec_id = StorePaths(table.view.metadata), table.view.metadata.default_spec_id
        partitions = {version.place[0] for commit in self.commits for version in commit.versions}
        partitions |= {partition for partition, _ in self.base.rows} | set(self.base.merged)
        merged = table.merged_sequences()
        assert sequences_for_amoro(table.view.metadata, table.view.io) == merged
        return {partition: merged.get(paths.path_of(spec_id, partition), 0) for partition in partitions}

    def check(self) -> None:
        table = self.handle().refresh()
        memory = self.random.choice([64, 1 << 20, 1 << 20])
        assert tuples(table.scan(memory_bytes=memory).batches()) == self.shown(self.expected().values())
        assert tuples(table.scan(store="base").batches()) == self.shown([row for _, row in self.base.rows.values()])

    def check_files(self) -> None:
        """Every row is in the node of its file, every delete has the node of its data file, and nothing comes from later
        than it was merged."""
        table = self.opened()
        keys = [table.schema.find_field(name) for name in table.primary_key]
        paths, merged = StorePaths(table.view.metadata), table.merged_sequences()
        files = parse_file_names(table.file_list.frame(), "base")
        for file in files.filter(IS_DATA).iter_rows(named=True):
            read = pq.read_table(local(file["file_path"]), partitioning=None)
            hashes = key_hashes([read[key.name].combine_chunks() for key in keys], [key.field_type for key in keys])
            assert Node.of_id(file["node_id"]).holds(hashes).all(), file["file_path"]
        for spec_id, key, transaction in files.select("spec_id", "partition", "transaction_id").iter_rows():
            assert transaction <= max(merged.get(paths.path(spec_id, key), 0), 0)
        nodes = dict(files.filter(IS_DATA).select("file_path", "node_id").iter_rows())
        named = files.filter(~IS_DATA & pl.col("referenced_data_file").is_not_null())
        for path, about in named.select("file_path", "referenced_data_file").iter_rows():
            if (node := pl.Series([path]).str.extract(_NAMED)[0]) is not None and about in nodes:
                assert int(node) == nodes[about]

    def check_plain(self) -> None:
        """PyIceberg reads Base as any table."""
        rows = self.opened()._loaded.scan().to_arrow()
        assert tuples([rows]) == self.shown([row for _, row in self.base.rows.values()])

    def check_whole(self) -> None:
        table = self.opened()
        for store in (table._loaded, table.change_store._loaded):
            assert not [*missing(store), *leftovers(store), *untrue_totals(store)]

    # Steps

    def finish(self) -> None:
        before = len(self.begun), len(self.commits), self._loads
        super().finish()
        self.abandoned += len(self.begun) < before[0] and (len(self.commits), self._loads) == before[1:]

    def foreign_delete(self) -> None:
        """Another engine deletes rows of Base by their positions."""
        table = self.handle().refresh()
        live = table.scan([*self.columns.values(), *changes.ORIGIN], store="base").to_arrow()
        chosen = [number for number in range(live.num_rows) if self.random.random() < 0.3]
        deleted = live.take(pa.array(chosen, pa.int64()))
        change = changes.position_delete_of(table._loaded, deleted.select(changes.ORIGIN))
        if change is None:
            return
        committed = table.commit(change)
        rows = [{tag: row[name] for tag, name in self.columns.items()} for row in deleted.to_pylist()]
        deleted_places = set(self.places(rows))
        kept = {place: row for place, row in self.base.rows.items() if place not in deleted_places}
        self.bases.append(BaseState(merged=self.base.merged, rows=kept))
        self.in_order, self.is_logged = None, False
        self.log.append(f"{len(rows)} foreign position deletes: {committed.snapshot_id}")

    def foreign_rewrite(self) -> None:
        """Another engine compacts a partition of Base: its files belong to the root and to no transaction."""
        table = self.handle().refresh()
        data = table.file_list.frame().filter(IS_DATA)
        if self.begun or data.is_empty():
            return
        spec_id, key = self.random.choice(sorted(data.select("spec_id", "partition").unique().iter_rows()))
        chosen = data.filter((pl.col("spec_id") == spec_id) & (pl.col("partition") == key))
        committed = table.commit(changes.rewrite(table._loaded, chosen))
        place = PartitionDecoder(table.view.metadata).values(spec_id, key)
        rows = {known: (0 if known[0] == place else told[0], told[1]) for known, told in self.base.rows.items()}
        self.bases.append(BaseState(merged=self.base.merged, rows=rows))
        self.in_order, self.is_logged = None, False
        self.log.append(f"foreign rewrite of {place}: {committed.snapshot_id}")

    def change_buckets(self) -> None:
        super().change_buckets()
        if self.random.random() < 0.4:
            self.handle().refresh().unset(BASE_BUCKETS)
            self.log.append("no limit of base nodes")

    def base_files(self, *, deletes: bool = False) -> dict[tuple[int, str], set[str]]:
        """The data files of each partition, or its delete files."""
        found: dict[tuple[int, str], set[str]] = {}
        listed = self.opened().file_list.frame().filter(~IS_DATA if deletes else IS_DATA)
        listed = listed.select("spec_id", "partition", "file_path")
        for spec_id, key, path in listed.iter_rows():
            found.setdefault((spec_id, key), set()).add(path)
        return found


def pending(table: KeyedTable) -> set[tuple[int, str]]:
    """The partitions with changes that are not merged."""
    return {(spec_id, key) for spec_id, key in table._pending().select("spec_id", "partition").unique().iter_rows()}
