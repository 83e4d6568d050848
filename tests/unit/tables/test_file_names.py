"""What the names of store files tell."""

from __future__ import annotations

import polars as pl
import pytest

from pyarctic.tables.format.file_names import parse_file_names


@pytest.mark.parametrize(
    ("name", "node", "kind", "transaction"),
    [
        ("4-I-0-00000-2-7301827364518273645-00001.parquet", 4, "I", 9),
        (".6-ED-3-00000-2-7301827364518273645-00001.parquet", 6, "ED", 3),
        ("00000-0-8f6b-00001.parquet", 1, "I", 9),
        ("4-X-3-00000-2-7301827364518273645-00001.parquet", 1, "I", 9),
        ("0-I-3-00000-2-7301827364518273645-00001.parquet", 1, "I", 9),  # there is no such node: somebody else's name
    ],
)
def test_names_of_changes(name: str, node: int, kind: str, transaction: int) -> None:
    files = pl.DataFrame({"file_path": [f"s3://lake/t/data/{name}"], "data_sequence_number": [9]})
    facts = parse_file_names(files, "change").row(0, named=True)
    assert (facts["node_id"], facts["kind"], facts["transaction_id"]) == (node, kind, transaction)
