"""What other processes get to know of a storage: its own properties, and none of the catalog's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import TOKEN, URI
from pyiceberg.catalog.rest import auth
from pyiceberg.io import S3_SIGNER, FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from pyarctic.errors import Unavailable
from pyarctic.iceberg import AUTH_MANAGER, list_folder, remove_quietly, storage_properties, write_bytes
from pyarctic.iceberg.read import TableView
from pyarctic.iceberg.storage import _OF_THE_SIGNER

STORAGE = {
    "s3.access-key-id": "id",
    "s3.secret-access-key": "open",
    "py-io-impl": "mine",
    "my.own": "7",
    "warehouse": "s3://w",
}
CATALOG = {
    "uri": "postgresql://user:database-secret@host/db",
    "token": "the-token",
    "credential": "client:client-secret",
    "auth": {"type": "basic", "basic": {"password": "basic-secret"}},
    "oauth2-server-uri": "https://login",
    "header.X-Key": "header-secret",
    "rest.signing-name": "x",
    "glue.secret-access-key": "glue-secret",
    "ugi": "user:hive-secret",
    "hive.kerberos-service-name": "hive",
    "gcp.bigquery.credentials-info": '{"private_key": "bigquery-secret"}',
    "ssl": {"client": {"key": "ssl-secret"}},
    "scope": "PRINCIPAL_ROLE:ALL",
}


class Manager(auth.AuthManager):
    """Gives a new token every time."""

    tokens = 0

    def auth_header(self) -> str:
        self.tokens += 1
        return f"Bearer token-{self.tokens}"


def storage(**more: Any) -> FileIO:
    return PyArrowFileIO({**CATALOG, **STORAGE, AUTH_MANAGER: Manager(), **more})


def test_the_names_are_those_of_pyiceberg() -> None:
    assert AUTH_MANAGER == auth.AUTH_MANAGER
    assert {TOKEN, URI} < set(_OF_THE_SIGNER)


def test_the_catalog_keeps_its_secrets() -> None:
    assert storage_properties(storage()) == STORAGE
    json.dumps(storage_properties(storage()))


def test_a_signing_catalog_is_called_with_its_current_token() -> None:
    io = storage(**{S3_SIGNER: "S3V4RestSigner"})
    for number in (1, 2):
        sent = storage_properties(io)
        kept = {name: CATALOG[name] for name in ("uri", "token", "header.X-Key")}
        assert sent == {**STORAGE, **kept, S3_SIGNER: "S3V4RestSigner", "header.Authorization": f"Bearer token-{number}"}


def test_a_token_server_that_is_down() -> None:
    class Down(Manager):
        def auth_header(self) -> str:
            raise ConnectionError("no route")

    assert storage_properties(storage(**{AUTH_MANAGER: Down()})) == STORAGE
    with pytest.raises(Unavailable, match="ConnectionError: no route"):
        storage_properties(storage(**{AUTH_MANAGER: Down(), S3_SIGNER: "S3V4RestSigner"}))


@pytest.mark.parametrize("secret", ["database-secret", "client-secret", "glue-secret", "hive-secret", "the-token"])
def test_a_pickled_view_has_none_of_them(secret: str) -> None:
    class Metadata:
        """Of no table: only the storage matters."""

    view = TableView.__new__(TableView)
    for name, value in (("name", "t"), ("metadata", Metadata()), ("io", storage())):
        object.__setattr__(view, name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyarctic.iceberg.read.live_rows.trim_metadata", lambda _: type("M", (), {"model_dump_json": str})())
        assert secret not in str(view.__reduce__())


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_files_of_a_folder(tmp_path: Path, kind: type[FileIO], scheme: str) -> None:
    io, folder = kind({}), f"{scheme}{tmp_path}/a"
    assert list_folder(io, folder) == []
    for name in ("one.json", "two.json", "deeper/three.json"):
        write_bytes(io, f"{folder}/{name}", b"1")
    assert sorted(list_folder(io, folder) or ()) == [f"{folder}/one.json", f"{folder}/two.json"]


def test_a_file_that_exists_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"theirs")
    with pytest.raises(Unavailable, match="cannot write"):
        write_bytes(PyArrowFileIO(), path.as_uri(), b"ours")
    assert path.read_bytes() == b"theirs"


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
def test_files_that_cannot_be_removed_are_told(tmp_path: Path, kind: type[FileIO]) -> None:
    io = kind({})
    there, gone = f"file://{tmp_path}/there", f"file://{tmp_path}/gone"
    write_bytes(io, there, b"1")
    failed = remove_quietly(io, [there, gone, "nowhere://b/c"])
    assert failed == {"nowhere://b/c"}
    assert not (tmp_path / "there").exists()
