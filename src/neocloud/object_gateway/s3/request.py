"""An S3 request as it came: bucket, key, query and headers, decoded and bounded."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from neocloud.data_plane.http.server import host_name
from neocloud.object_gateway.s3.errors import S3Error, invalid
from neocloud.object_gateway.s3.signature import PAYLOAD_NAME, QUERY_NAMES, SIGNATURE_NAME, Incoming, Pairs
from neocloud.object_store import checksums
from neocloud.object_store.types import ChecksumAlgorithm

_START, _ALGORITHM = "x-amz-", "x-amz-sdk-checksum-algorithm"
_OF_SIGNATURE = frozenset(each.lower() for each in (*QUERY_NAMES, SIGNATURE_NAME, PAYLOAD_NAME))
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OF_NOTHING = {
    f"x-amz-checksum-{each.lower()}": base64.b64encode(checksums.running(each).digest()).decode()
    for each in ChecksumAlgorithm
}
"""The checksums of an empty body, which SDKs write where they sign before there is a body."""
MAX_QUERY_PARTS = 100


@dataclass(frozen=True)
class S3Request:
    id: str
    method: str
    bucket: str
    """"" where the request is to the service."""
    key: str
    """"" where the request is to a bucket."""
    query: Mapping[str, str]
    """Without `x-amz-*`, which are of the signature or count as headers."""
    headers: Mapping[str, str]
    """The headers by lower-case name, decoded as Latin-1, with those that the query has."""
    incoming: Incoming
    client: str
    """The address of the client."""
    is_secure: bool
    """Over TLS, or from this machine."""
    resource: str = field(default="")
    """The path, for errors and the audit."""

    @cached_property
    def metadata_headers(self) -> Sequence[tuple[str, str]]:
        return [(name, value) for name, value in self.headers.items() if name.startswith("x-amz-meta-")]

    def header(self, name: str, default: str = "") -> str:
        return self.headers.get(name, default)

    def get(self, name: str, default: str = "") -> str:
        return self.query.get(name, default)

    def number(self, name: str, default: int, most: int, *, least: int = 0) -> int:
        """Return a parameter that is a whole number; a larger one counts as `most`."""
        text = self.query.get(name)
        if text is None or text == "":
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) < least:
            raise invalid(f"{name} must be a whole number from {least}.", name=name, value=text)
        return min(int(text), most)


def read_request(scope: Scope, request_id: str, domains: Sequence[str]) -> S3Request:
    """Raises S3Error for paths and queries that are not UTF-8, or have too many parts."""
    headers = joined_headers(scope["headers"])
    raw_path: bytes = scope["raw_path"].partition(b"?")[0]
    if not raw_path.startswith(b"/"):
        raw_path = b"/"  # "OPTIONS *" and absolute forms
    path = unquote_to_bytes(raw_path)
    pairs = _query(scope["query_string"])
    host = host_name(headers.get("host", "").encode("latin-1"))
    bucket, key = _place(host, path, domains)
    client: tuple[str, int] | None = scope.get("client")
    address = client[0] if client else ""
    return S3Request(
        id=request_id,
        method=scope["method"],
        bucket=bucket,
        key=key,
        query={_text(name): _text(value) for name, value in pairs if _is_of_query(name)},
        headers=with_query(headers, pairs),
        incoming=Incoming(scope["method"], path, raw_path, pairs, headers),
        client=address,
        is_secure=scope["scheme"] == "https" or address in ("127.0.0.1", "::1"),
        resource=path.decode("utf-8", "replace"),
    )


def joined_headers(headers: Sequence[tuple[bytes, bytes]]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _place(host: str, path: bytes, domains: Sequence[str]) -> tuple[str, str]:
    """Return bucket and key, of a path or of a host name."""
    for domain in domains:
        if host.endswith(f".{domain}"):
            return host.removesuffix(f".{domain}"), _text(path[1:])
    bucket, _, key = path[1:].partition(b"/")
    return _text(bucket), _text(key)


def _query(text: bytes) -> list[tuple[bytes, bytes]]:
    parts = [part for part in text.split(b"&") if part]
    if len(parts) > MAX_QUERY_PARTS:
        raise invalid(f"A query may have {MAX_QUERY_PARTS} parameters.")
    pairs = [part.partition(b"=")[::2] for part in parts]
    return [(_decoded(name), _decoded(value)) for name, value in pairs]


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "The path and the query must be in UTF-8.") from None


def _is_of_query(name: bytes) -> bool:
    """Return whether a parameter stays a parameter."""
    found = name.decode("latin-1").lower()
    return not found.startswith(_START)


def with_query(headers: Mapping[str, str], pairs: Pairs) -> Mapping[str, str]:
    """Return the headers, by lower-case name, with those that the query has.

    SDKs move headers into the query when they presign, in lower case or as "X-Amz-Meta-Name". Each counts as
    its header (decision 0076). Raises S3Error where one comes twice with different values, or could not be a
    header.
    """
    given: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        if not name.startswith(_START) or name in _OF_SIGNATURE:
            continue
        if _CONTROL.search(value):
            raise invalid("The query has a header with control characters.", name=name)
        if given.setdefault(name, value) != value:
            raise _twice(name)
    if not given:
        return headers
    for name, value in _OF_NOTHING.items():
        if given.get(name) == value:
            del given[name]
            given.pop(_ALGORITHM, None)
    for name, value in given.items():
        if headers.get(name, value) != value:
            raise _twice(name)
    return {**headers, **given}


def _twice(name: str) -> S3Error:
    return invalid("A header comes twice, in the query or beside it, with different values.", name=name)
