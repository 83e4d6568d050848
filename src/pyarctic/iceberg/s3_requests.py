"""Single requests to S3 storage, for what takes Arrow several of them.

Arrow asks for the size of an object before it reads it, even if the size is known; asks whether an object exists before it
deletes it, and afterwards writes an empty object in the place of its folder. These requests are signed with the settings of
Arrow's filesystem. What they cannot do (another kind of credentials, a proxy, any unusual answer) is left to Arrow, whose
retries and errors count.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import MappingProxyType
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

from pyarrow.fs import S3FileSystem

_CONNECT_SECONDS, _REQUEST_SECONDS = 3.0, 5.0
"""Until a connection is there, and without a byte arriving; `s3.connect-timeout` and `s3.request-timeout` set others."""
_EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_OTHER_REASONS = frozenset({404, 408, 416, 429, 500, 502, 503, 504})
"""Refusals that have nothing to do with the form of the request or its keys."""
_MAX_ERROR_BYTES = 64 << 10
_ALGORITHM = "AWS4-HMAC-SHA256"

Method = Literal["GET", "HEAD", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Where the storage is, and the keys that requests are signed with."""

    endpoint: str
    """With scheme."""
    region: str
    access_key: str | None
    """None: requests are not signed."""
    secret_key: str
    session_token: str
    bucket_in_host: bool
    connect_seconds: float
    request_seconds: float
    ca_file: str | None

    @classmethod
    def of(cls, filesystem: S3FileSystem) -> Self | None:
        """The settings of a filesystem; None if its requests can only be made by Arrow."""
        options: dict[str, Any] = filesystem.__reduce__()[1][0]
        region = options["region"]
        if options["role_arn"] or options["proxy_options"]["host"] or not region:
            return None
        keys = _keys(options)
        if keys is None and not options["anonymous"]:
            return None
        access_key, secret_key, session_token = keys or (None, "", "")
        endpoint = options["endpoint_override"]
        if endpoint and "://" not in endpoint:
            endpoint = f"{options['scheme']}://{endpoint}"
        return cls(
            endpoint=endpoint or f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}",
            region=region,
            access_key=access_key,
            secret_key=secret_key,
            session_token=session_token,
            bucket_in_host=bool(options["force_virtual_addressing"] or not endpoint),
            connect_seconds=_positive(options["connect_timeout"]) or _CONNECT_SECONDS,
            request_seconds=_positive(options["request_timeout"]) or _REQUEST_SECONDS,
            ca_file=options["tls_ca_file_path"] or None,
        )

    def locate(self, bucket: str, key: str) -> tuple[str, str]:
        """The host, with its port, and the path of an object, as both are signed."""
        base = urlsplit(self.endpoint)
        path, host = quote(f"/{key}", safe="/-_.~"), base.netloc
        if self.bucket_in_host and "." not in bucket:  # no certificate covers a bucket with a dot in its name
            return f"{bucket}.{host}", base.path.rstrip("/") + path
        return host, f"{base.path.rstrip('/')}/{bucket}{path}"

    def sign(self, method: Method, host: str, path: str, now: datetime) -> dict[str, str]:
        """The headers of a request, with its signature (AWS Signature Version 4)."""
        if self.access_key is None:
            return {"host": host}
        time = now.strftime("%Y%m%dT%H%M%SZ")
        signed = {"host": host, "x-amz-content-sha256": _EMPTY_HASH, "x-amz-date": time}
        if self.session_token:
            signed["x-amz-security-token"] = self.session_token
        names = ";".join(sorted(signed))
        canonical_headers = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        canonical = "\n".join([method, path, "", canonical_headers, names, _EMPTY_HASH])
        scope = f"{time[:8]}/{self.region}/s3/aws4_request"
        text = "\n".join([_ALGORITHM, time, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{self.secret_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"{self.access_key}/{scope}"
        authorization = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
        return {**signed, "authorization": authorization}


def _keys(options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Access key, secret and token: those of the catalog, or of the environment, where Arrow looks next."""
    if options["anonymous"]:
        return None
    if options["access_key"]:
        return options["access_key"], options["secret_key"], options["session_token"]
    found = [os.environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")]
    return (found[0], found[1], found[2]) if found[0] and found[1] else None


def _positive(seconds: float) -> float | None:
    return seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request. The bytes are missing if there are more than the caller wants, or nobody knows how many."""

    status: int
    size: int | None
    data: bytes | None


class S3Requests:
    """Makes single requests for objects of one bucket; their paths begin with it. None as an answer means: let Arrow try."""

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._connections = threading.local()
        self._tls = ssl.create_default_context(cafile=access.ca_file) if access.endpoint.startswith("https:") else None
        self._is_refused = False
        """The storage does not accept the keys, or wants requests to look different: it would refuse others, too."""

    def get(self, path: str, max_bytes: int, *, span: tuple[int, int] | None = None) -> Answer | None:
        """Get an object, or its bytes from the first number of `span` up to the second."""
        headers = {} if span is None else {"range": f"bytes={span[0]}-{span[1] - 1}"}
        answer = self._request("GET", path, headers, max_bytes)
        if answer is None or answer.size is None or answer.status != (200 if span is None else 206):
            return None
        return answer

    def exists(self, path: str) -> bool | None:
        """Whether there is such an object."""
        answer = self._request("HEAD", path)
        return {200: True, 404: False}.get(answer.status) if answer is not None else None

    def delete(self, path: str) -> bool:
        """Delete an object, and return whether that is done. It need not exist."""
        answer = self._request("DELETE", path)
        return answer is not None and answer.status in (200, 204)

    def _request(
        self, method: Method, path: str, headers: Mapping[str, str] = MappingProxyType({}), max_bytes: int = 0
    ) -> Answer | None:
        if self._is_refused:
            return None
        bucket, _, key = path.partition("/")
        host, url = self._access.locate(bucket, key)
        signed = self._access.sign(method, host, url, datetime.now(UTC))
        try:
            answer = _read(self._send(method, host, url, {**signed, **headers}), max_bytes)
        except (OSError, HTTPException) as cause:
            self._is_refused = isinstance(cause, ssl.SSLError)
            self._connections.__dict__.clear()
            return None
        self._is_refused = answer.status >= 300 and answer.status not in _OTHER_REASONS
        if answer.data is None:  # the rest of the answer is not read
            self._connections.__dict__.clear()
        return answer

    def _send(self, method: Method, host: str, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        kept: _Connection | None = self._connections.__dict__.get(host)
        if kept is not None:
            try:
                return kept.send(method, url, headers)
            except (ConnectionError, HTTPException):  # the other side has closed it meanwhile
                pass
        kept = self._connections.__dict__[host] = _Connection(self._access, host, self._tls)
        return kept.send(method, url, headers)


class _Connection:
    """A connection that is kept open, by one thread."""

    def __init__(self, access: S3Access, host: str, tls: ssl.SSLContext | None) -> None:
        seconds = access.connect_seconds
        self._http = HTTPSConnection(host, timeout=seconds, context=tls) if tls else HTTPConnection(host, timeout=seconds)
        self._http.connect()
        self._http.timeout = access.request_seconds
        self._http.sock.settimeout(access.request_seconds)

    def send(self, method: Method, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Send a request and receive the head of the response."""
        self._http.request(method, url, headers=dict(headers))
        return self._http.getresponse()

    def __del__(self) -> None:
        self._http.close()


def _read(response: HTTPResponse, max_bytes: int) -> Answer:
    size, is_error = response.length, response.status >= 300
    # The body of an error is short, and read so that the connection can be used again.
    is_wanted = size is not None and size <= (_MAX_ERROR_BYTES if is_error else max_bytes)
    return Answer(status=response.status, size=size, data=response.read() if is_wanted else None)
