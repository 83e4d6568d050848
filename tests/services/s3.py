"""S3 as moto plays it: the server of tests/services/glue.py, with a bucket of its own for each test.

The server refuses every access key but one, and tells which requests it got: what object storage costs, and how slow it is,
depends on their number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen
from uuid import uuid4

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_ACCESS = {"region": "us-east-1", "access-key-id": "any", "secret-access-key": "any"}
_LOG_PATH = "/_requests"
_REFUSAL = b"<Error><Code>InvalidAccessKeyId</Code><Message>The access key does not exist in our records.</Message></Error>"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for an object, or for a list of objects if `key` is empty."""

    method: str
    bucket: str
    key: str


def record_requests(app: WSGIApplication) -> WSGIApplication:
    """Note the requests that an application gets, and give them out at `_LOG_PATH`."""
    requests: list[tuple[str, str, str]] = []

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = str(environ["PATH_INFO"])
        if path == _LOG_PATH:
            noted, requests[:] = requests[:], []
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(noted).encode()]
        bucket, _, key = path.removeprefix("/").partition("/")
        requests.append((environ["REQUEST_METHOD"], bucket, key))
        authorization = str(environ.get("HTTP_AUTHORIZATION", ""))
        if "/s3/aws4_request" in authorization and f"Credential={_ACCESS['access-key-id']}/" not in authorization:
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [_REFUSAL]
        return app(environ, start_response)

    return serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """An empty bucket, and what a catalog needs to have its warehouse there."""

    name: str
    endpoint: str
    client: Any
    properties: Mapping[str, str]

    def key_of(self, path: str) -> str:
        """The key of an object, from its path in a table."""
        return path.removeprefix(f"s3://{self.name}/")

    def object_keys(self) -> list[str]:
        """The keys of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def take_requests(self) -> list[Request]:
        """The requests to this bucket since the last call."""
        with urlopen(self.endpoint + _LOG_PATH) as response:
            requests = [Request(*noted) for noted in json.load(response)]
        return [request for request in requests if request.bucket == self.name]


@contextmanager
def fresh_bucket(endpoint: str) -> Iterator[Bucket]:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=_ACCESS["region"],
        aws_access_key_id=_ACCESS["access-key-id"],
        aws_secret_access_key=_ACCESS["secret-access-key"],
    )
    name = f"lake-{uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    access = {f"s3.{key}": value for key, value in _ACCESS.items()}
    yield Bucket(
        name=name,
        endpoint=endpoint,
        client=client,
        properties={"warehouse": f"s3://{name}/warehouse", "s3.endpoint": endpoint, **access},
    )
    client.close()


def count_methods(requests: Iterable[Request]) -> dict[str, int]:
    """The number of requests by method."""
    return dict(Counter(request.method for request in requests))
