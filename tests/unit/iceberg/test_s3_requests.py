"""Single requests to S3: how they are signed, and what happens with unusual answers."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from pyarrow.fs import S3FileSystem
from pyiceberg.io import load_file_io

from pyarctic.errors import Damaged
from pyarctic.iceberg.catalog import apply_patches
from pyarctic.iceberg.s3_file_io import S3FileIO
from pyarctic.iceberg.s3_requests import Answer, S3Access, S3Requests
from pyarctic.iceberg.storage import keep_small_files, open_input, read_bytes, read_range

_KEYS = ["data/a.parquet", "data/day=2024-01-01 00%3A00/ä+b=c&d,e.parquet", "x~(1)!*'.parquet"]


UNKNOWN = -1


def _filesystem(**options: object) -> S3FileSystem:
    return S3FileSystem(
        **{
            "access_key": "me",
            "secret_key": "s3cret/+",
            "region": "eu-north-1",
            "endpoint_override": "http://here:9000",
            **options,
        }
    )


@pytest.mark.parametrize("key", _KEYS)
@pytest.mark.parametrize("token", ["", "session/token=="])
@pytest.mark.parametrize("virtual", [False, True])
def test_signatures_are_those_of_botocore(key: str, token: str, virtual: bool) -> None:
    access = S3Access.of(_filesystem(session_token=token or None, force_virtual_addressing=virtual))
    assert access is not None
    host, path = access.locate("lake", key)
    assert host == ("lake.here:9000" if virtual else "here:9000")
    request = AWSRequest("GET", f"http://{host}{path}")
    S3SigV4Auth(Credentials("me", "s3cret/+", token or None), "s3", "eu-north-1").add_auth(request)
    now = datetime.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert access.sign("GET", host, path, now)["authorization"] == request.headers["Authorization"]


def test_where_the_storage_is() -> None:
    amazon = S3Access.of(_filesystem(endpoint_override=None))
    assert amazon is not None
    assert amazon.endpoint == "https://s3.eu-north-1.amazonaws.com"
    assert amazon.locate("lake", "a b") == ("lake.s3.eu-north-1.amazonaws.com", "/a%20b")
    assert amazon.locate("my.lake", "a") == ("s3.eu-north-1.amazonaws.com", "/my.lake/a")
    plain = S3Access.of(_filesystem(endpoint_override="here:9000", scheme="http"))
    assert plain is not None
    assert plain.endpoint == "http://here:9000"


def test_which_keys_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # there is none to wait for
    assert S3Access.of(_filesystem(proxy_options="http://proxy:1")) is None
    assert S3Access.of(_filesystem(access_key=None, secret_key=None)) is None  # of the machine: Arrow knows how
    assert S3Access.of(_filesystem(access_key=None, secret_key=None, role_arn="arn:aws:iam::1:role/x")) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    from_environment = S3Access.of(_filesystem(access_key=None, secret_key=None))
    assert from_environment is not None
    assert from_environment.access_key == "of-the-environment"
    anonymous = S3Access.of(_filesystem(access_key=None, secret_key=None, anonymous=True))
    assert anonymous is not None
    assert anonymous.sign("GET", "here", "/a", datetime(2024, 1, 1, tzinfo=UTC)) == {"host": "here"}


@dataclass
class Storage:
    """A server that answers as told: status, body, and the length that it claims."""

    answers: list[tuple[int, bytes, int | None]] = field(default_factory=list)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    connections: set[object] = field(default_factory=set)
    closes: bool = False
    endpoint: str = ""

    def client(self) -> S3Requests:
        access = S3Access.of(_filesystem(endpoint_override=self.endpoint, connect_timeout=2, request_timeout=2))
        assert access is not None
        return S3Requests(access)

    def io(self) -> S3FileIO:
        keys = {"s3.access-key-id": "me", "s3.secret-access-key": "any", "s3.region": "eu-north-1"}
        io = load_file_io({**keys, "s3.endpoint": self.endpoint}, "s3://lake/t")
        assert isinstance(io, S3FileIO)
        return io


@pytest.fixture
def storage() -> Iterator[Storage]:
    apply_patches()
    with _serving(Storage()) as started:
        yield started


@contextmanager
def _serving(storage: Storage) -> Iterator[Storage]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            storage.connections.add(self.client_address)
            storage.requests.append((self.command, self.path, self.headers.get("Range")))
            status, body, length = storage.answers.pop(0)
            self.send_response(status)
            if length != UNKNOWN:
                self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.close_connection = storage.closes or length is not None

        do_GET = do_HEAD = do_DELETE = _answer  # noqa: N815  # names of the library

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    storage.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield storage
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_one_connection_serves_many_requests(storage: Storage) -> None:
    storage.answers += [(200, b"abc", None), (404, b"none", None), (206, b"b", None), (204, b"", None), (200, b"", 7)]
    client = storage.client()
    assert client.get("lake/a b", 10) == Answer(status=200, size=3, data=b"abc")
    assert client.get("lake/b", 10) is None
    assert client.get("lake/a", 10, span=(1, 2)) == Answer(status=206, size=1, data=b"b")
    assert client.delete("lake/a")
    assert client.exists("lake/a") is True
    assert storage.requests == [
        ("GET", "/lake/a%20b", None),
        ("GET", "/lake/b", None),
        ("GET", "/lake/a", "bytes=1-1"),
        ("DELETE", "/lake/a", None),
        ("HEAD", "/lake/a", None),
    ]
    assert len(storage.connections) == 1


def test_a_connection_that_was_closed_is_opened_again(storage: Storage) -> None:
    storage.closes = True
    storage.answers += [(200, b"a", None)] * 3
    client = storage.client()
    assert [client.get("lake/a", 10) for _ in range(3)] == [Answer(status=200, size=1, data=b"a")] * 3


def test_a_larger_object_is_not_read(storage: Storage) -> None:
    storage.answers += [(200, b"x" * 100, None), (200, b"ab", None)]
    client = storage.client()
    assert client.get("lake/a", 99) == Answer(status=200, size=100, data=None)
    assert client.get("lake/a", 99) == Answer(status=200, size=2, data=b"ab")


def test_a_body_that_is_cut_off_is_no_answer(storage: Storage) -> None:
    storage.answers += [(200, b"abc", 5), (200, b"abc", UNKNOWN), (200, b"abcde", None)]
    client = storage.client()
    assert [client.get("lake/a", 10), client.get("lake/a", 10)] == [None, None]
    assert client.get("lake/a", 10) == Answer(status=200, size=5, data=b"abcde")


@pytest.mark.parametrize(("status", "asks_again"), [(403, False), (400, False), (301, False), (503, True), (429, True)])
def test_a_storage_that_refuses_requests_is_not_asked_again(storage: Storage, status: int, asks_again: bool) -> None:
    storage.answers += [(status, b"no", None), (200, b"a", None)]
    client = storage.client()
    assert client.get("lake/a", 10) is None
    assert (client.get("lake/a", 10) is not None) == asks_again


def test_arrow_reads_what_single_requests_cannot(storage: Storage) -> None:
    storage.answers += [(400, b"", None), (200, b"", 3), (206, b"abc", None)]
    assert read_bytes(storage.io(), "s3://lake/a") == b"abc"
    assert [method for method, *_ in storage.requests] == ["GET", "HEAD", "GET"]


def test_a_file_of_another_size_is_damaged(storage: Storage) -> None:
    io = storage.io()
    for body in (b"abc", b"abcde"):
        storage.answers.append((200, body, None))
        with pytest.raises(Damaged, match=r"bytes, its manifest says 4: s3://lake/a"), open_input(io, "s3://lake/a", 4):
            pass
    storage.answers.append((200, b"abcd", None))
    with open_input(io, "s3://lake/a", 4) as stream:
        assert stream.read(10) == b"abcd"


def test_files_are_kept_within_a_block_only(storage: Storage) -> None:
    io = storage.io()
    storage.answers += [(200, body, None) for body in (b"abcd", b"efgh", b"abcd", b"abcd")]

    def read(path: str) -> bytes:
        with open_input(io, path, 4) as stream:
            return stream.read(10)

    with keep_small_files(4):
        assert [read("s3://lake/a"), read("s3://lake/a"), read_range(io, "s3://lake/a", 1, 2, 4)] == [
            b"abcd",
            b"abcd",
            b"bc",
        ]
        assert [read("s3://lake/b"), read("s3://lake/a")] == [b"efgh", b"abcd"]
    assert read("s3://lake/a") == b"abcd"
    storage.answers.append((206, b"bc", None))
    assert read_range(io, "s3://lake/a", 1, 2, 4) == b"bc"
    assert storage.requests.pop() == ("GET", "/lake/a", "bytes=1-2")
    assert [path for _, path, _ in storage.requests] == ["/lake/a", "/lake/b", "/lake/a", "/lake/a"]


def test_it_can_be_sent_to_other_processes(storage: Storage) -> None:
    io = storage.io()
    storage.answers += [(200, b"a", None)] * 2
    assert read_bytes(io, "s3://lake/a") == b"a"
    assert read_bytes(pickle.loads(pickle.dumps(io)), "s3://lake/a") == b"a"
