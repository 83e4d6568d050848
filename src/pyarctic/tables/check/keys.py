"""Whether rows are where they belong: with a key, in files of their tree node, with a possible offset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow.compute as pc

from pyarctic.iceberg.check import Problem
from pyarctic.iceberg.delete import Positions
from pyarctic.iceberg.manifest import PartitionDecoder
from pyarctic.iceberg.read import FileBatch, Projection, TableView
from pyarctic.tables.format.change_columns import FILE_OFFSET
from pyarctic.tables.format.file_names import Store, parse_file_names
from pyarctic.tables.format.key_hash import key_hashes
from pyarctic.tables.format.primary_key import PrimaryKey
from pyarctic.tables.format.tree import Node
from pyarctic.tables.read.latest_versions import MAX_OFFSET

_DETAILS = {
    "null-keys": "null in a key column",
    "wrong-node": "their key has the hash of another node",
    "wrong-offsets": f"below 0 or above {MAX_OFFSET}",
}


class KeyInspector:
    """Inspects the rows of a store while its files are read, in any thread.

    Rows that delete files delete are not told from live ones here; `problems` leaves them out afterwards."""

    def __init__(self, view: TableView, store: Store, key: PrimaryKey, *, check_nodes: bool) -> None:
        self._store = store
        self._key = key
        self._check_nodes = check_nodes
        self._decoder = PartitionDecoder(view.metadata)
        self._suspects: list[tuple[str, str, Positions]] = []
        self._node_of = lru_cache(maxsize=256)(self._parse_node)

    def inspect(self, row: Mapping[str, Any], batch: FileBatch) -> list[Problem]:
        """Look at rows of a file."""
        constants = self._decoder.constants(row["spec_id"], row["partition"])
        rows = Projection.of(batch.batch.schema, batch.file.names, self._key.fields, constants).apply(batch.batch)
        is_null = np.zeros(rows.num_rows, dtype=bool)
        for column in rows.columns:
            if column.null_count:
                is_null |= column.is_null().to_numpy(zero_copy_only=False)
        self._note("null-keys", row, batch, is_null)
        if self._check_nodes:
            hashes = key_hashes(rows.columns, [field.field_type for field in self._key.fields])
            self._note("wrong-node", row, batch, ~self._node_of(row["file_path"]).holds(hashes))
        if self._store == "change":
            offsets = Projection.of(batch.batch.schema, batch.file.names, (FILE_OFFSET,), {}).apply(batch.batch).column(0)
            is_wrong = pc.fill_null(pc.or_(pc.less(offsets, 0), pc.greater(offsets, MAX_OFFSET)), False)
            self._note("wrong-offsets", row, batch, is_wrong.to_numpy(zero_copy_only=False))
        return []

    def _note(self, code: str, row: Mapping[str, Any], batch: FileBatch, is_wrong: npt.NDArray[np.bool_]) -> None:
        if is_wrong.any():
            self._suspects.append((code, row["file_path"], np.flatnonzero(is_wrong) + batch.position))

    def _parse_node(self, path: str) -> Node:
        file = pl.DataFrame({"file_path": [path], "data_sequence_number": [0]})
        return Node.of_id(int(parse_file_names(file, self._store)["node_id"].item()))

    def problems(self, deleted: Mapping[str, Positions]) -> list[Problem]:
        """What is wrong with rows that are live. `deleted`: the positions that delete files name, by data file; only files
        that are in it are reported."""
        counts: dict[tuple[str, str], int] = {}
        for code, path, positions in self._suspects:
            if path in deleted:
                live = len(positions) - int(np.isin(positions, deleted[path]).sum())
                counts[code, path] = counts.get((code, path), 0) + live
        return [Problem(code, _DETAILS[code], path, rows) for (code, path), rows in counts.items() if rows]

    @property
    def suspects(self) -> set[str]:
        """The files with rows that seem wrong."""
        return {path for _, path, _ in self._suspects}
