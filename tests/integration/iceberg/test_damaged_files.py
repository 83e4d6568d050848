"""Broken tables through the public doors: a clear error with the right exit code, and nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyarctic.cli.app import main
from pyarctic.errors import ArcticError, Damaged, Unsupported
from tests.integration.iceberg.conftest import Lake, rows
from tests.models.spec import SpecFile, SpecTable

NAME = "lake.db.t"
Break = Callable[[SpecTable, SpecFile], str | None]
"""Breaks a table with one data file; returns the file the error must name, None when it is the metadata."""


def on_disk(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def cut(uri: str) -> str:
    path = on_disk(uri)
    path.write_bytes(path.read_bytes()[:-20])
    return uri


def remove(uri: str) -> str:
    on_disk(uri).unlink()
    return uri


def overwrite(uri: str, content: bytes) -> str:
    on_disk(uri).write_bytes(content)
    return uri


def manifest_list(table: SpecTable) -> str:
    return str(table.metadata["snapshots"][-1]["manifest-list"])


def metadata_file(table: SpecTable) -> str:
    return str(table.catalog.load_table(table.identifier).metadata_location)


def unknown_codec(table: SpecTable, _: SpecFile) -> str:
    path = on_disk(table.manifests[0].path)
    data = path.read_bytes()
    assert data.count(b"deflate") == 1
    path.write_bytes(data.replace(b"deflate", b"inflate"))
    return table.manifests[0].path


def newer_format(table: SpecTable, _: SpecFile) -> None:
    overwrite(metadata_file(table), json.dumps(table.metadata | {"format-version": 4}).encode())


def newer_format_in_words_to_come(table: SpecTable, _: SpecFile) -> None:
    """A version whose metadata looks quite different."""
    overwrite(metadata_file(table), json.dumps({"format-version": 5, "shape": "unheard of"}).encode())


def broken_json(table: SpecTable, _: SpecFile) -> None:
    overwrite(metadata_file(table), b'{"format-version": 2, "tab')


def incomplete_metadata(table: SpecTable, _: SpecFile) -> None:
    kept = {key: value for key, value in table.metadata.items() if key != "schemas"}
    overwrite(metadata_file(table), json.dumps(kept).encode())


def missing_metadata(table: SpecTable, _: SpecFile) -> None:
    remove(metadata_file(table))


def corrupt_vector(table: SpecTable, data: SpecFile) -> str:
    [vector] = table.vectors({data.path: [0, 1]}, [data])
    table.commit(vector)
    path = on_disk(vector.path)
    content = bytearray(path.read_bytes())
    content[(vector.offset or 0) + 12] ^= 1
    path.write_bytes(content)
    return vector.path


def missing_vector(table: SpecTable, data: SpecFile) -> str:
    [vector] = table.vectors({data.path: [0]}, [data])
    table.commit(vector)
    return remove(vector.path)


def two_vectors(table: SpecTable, data: SpecFile) -> str:
    table.commit(*table.vectors({data.path: [0]}, [data]))
    table.commit(*table.vectors({data.path: [1]}, [data]))
    return data.path


def delete_of_another_partition(table: SpecTable, data: SpecFile) -> str:
    delete = replace(table.position_deletes([(data.path, 0)], data, named=True), partition=("elsewhere",))
    table.commit(delete)
    return delete.path


def vector_of_another_partition(table: SpecTable, data: SpecFile) -> str:
    [vector] = table.vectors({data.path: [0]}, [data])
    table.commit(replace(vector, partition=("elsewhere",)))
    return vector.path


def encrypted_data(table: SpecTable, data: SpecFile) -> str:
    secret = replace(data, path=data.path.replace(".parquet", "-secret.parquet"), key_metadata=b"key")
    table.commit(secret)
    return secret.path


def encrypted_delete(table: SpecTable, data: SpecFile) -> str:
    delete = replace(table.equality_deletes([{"id": 1}], data.partition), key_metadata=b"key")
    table.commit(delete)
    return delete.path


def missing_delete(table: SpecTable, data: SpecFile) -> str:
    delete = table.position_deletes([(data.path, 0)], data)
    table.commit(delete)
    return remove(delete.path)


def truncated_delete(table: SpecTable, data: SpecFile) -> str:
    delete = table.equality_deletes([{"id": 1}], data.partition)
    table.commit(delete)
    return cut(delete.path)


def delete_without_its_key(table: SpecTable, data: SpecFile) -> str:
    delete = replace(table.equality_deletes([{"id": 1}], data.partition), equality_ids=(1, 2))
    table.commit(delete)
    return delete.path


def unknown_file_format(table: SpecTable, data: SpecFile) -> str:
    strange = replace(data, path=data.path + ".lance", format="LANCE")
    table.commit(strange)
    return strange.path


BROKEN: list[tuple[Break, type[ArcticError], int]] = [
    (lambda table, _: remove(table.manifests[0].path), Damaged, 2),
    (lambda table, _: cut(table.manifests[0].path), Damaged, 2),
    (lambda table, _: overwrite(table.manifests[0].path, b""), Damaged, 2),
    (lambda table, _: remove(manifest_list(table)), Damaged, 2),
    (lambda table, _: cut(manifest_list(table)), Damaged, 2),
    (unknown_codec, Unsupported, 2),
    (newer_format, Unsupported, 2),
    (newer_format_in_words_to_come, Unsupported, 2),
    (broken_json, Damaged, 2),
    (incomplete_metadata, Damaged, 2),
    (missing_metadata, Damaged, 2),
    (corrupt_vector, Damaged, 3),
    (missing_vector, Damaged, 3),
    (two_vectors, Damaged, 3),
    (vector_of_another_partition, Damaged, 3),
    (delete_of_another_partition, Damaged, 2),
    (encrypted_data, Unsupported, 2),
    (encrypted_delete, Unsupported, 2),
    (missing_delete, Damaged, 2),
    (truncated_delete, Damaged, 2),
    (delete_without_its_key, Damaged, 2),
    (unknown_file_format, Unsupported, 2),
    (lambda _, data: remove(data.path), Damaged, 2),
    (lambda _, data: cut(data.path), Damaged, 2),
    (lambda _, data: overwrite(data.path, b""), Damaged, 2),
    (lambda _, data: overwrite(data.path, b"not Parquet at all, whatever the manifest says"), Damaged, 2),
]
NAMES = [
    "missing manifest", "truncated manifest", "empty manifest", "missing manifest list", "truncated manifest list",
    *(item[0].__name__ for item in BROKEN[5:22]), "missing data", "truncated data", "empty data", "garbage data",
]  # fmt: skip
EXIT_CODES = {"damaged": 1, "unsupported": 2}  # as docs/reference/cli.md says


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("catalog.db"):
            found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


@pytest.mark.parametrize(("damage", "kind", "version"), BROKEN, ids=NAMES)
def test_broken_table(
    lake: Lake, capfd: pytest.CaptureFixture[str], damage: Break, kind: type[ArcticError], version: int
) -> None:
    table = lake.make(version=version, partition=[("part", "identity")])
    data = table.data(rows(1, 2, 3, part="p"), ("p",))
    table.commit(data)
    assert lake.open().scan().to_arrow().num_rows == 3
    culprit = damage(table, data)
    before = listing(lake.folder)

    with pytest.raises(ArcticError) as caught:
        lake.open().scan().to_arrow()
    error = caught.value
    assert type(error) is kind
    assert error.hint
    assert NAME in str(error)
    assert "\n" not in str(error)
    assert error.facts["table"] == NAME
    if culprit is not None:
        assert culprit in str(error)
        assert error.facts["file"] == culprit

    capfd.readouterr()
    assert main(["table", "scan", NAME, "--json"]) == EXIT_CODES[error.code]
    told = json.loads(capfd.readouterr().err)
    assert told["code"] == error.code
    assert told["detail"] == str(error)
    assert told["hint"] == error.hint
    assert told["retryable"] is False
    assert main(["table", "scan", NAME]) == EXIT_CODES[error.code]
    assert f"error[{error.code}]" in capfd.readouterr().err

    assert listing(lake.folder) == before


def test_undamaged_snapshot_can_still_be_read(lake: Lake) -> None:
    table = lake.make()
    first, second = table.data(rows(1)), table.data(rows(2))
    healthy = table.commit(first)
    table.commit(second)
    remove(second.path)
    with pytest.raises(Damaged):
        lake.open().scan().to_arrow()
    assert lake.open().scan(snapshot_id=healthy).count() == 1
    assert lake.open().scan(snapshot_id=healthy).to_arrow().num_rows == 1
