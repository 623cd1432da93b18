"""Made-up queries and headers: whatever they say, they are read or refused, and nothing fails."""

from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote, quote_from_bytes

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3 import operations, request, signature
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.request import S3Request, read_request
from neocloud.object_store.types import ChecksumAlgorithm
from tests.fast.object_gateway.s3.raw import presigned
from tests.fast.object_gateway.s3.served import Served

SIGNING = [*signature.QUERY_NAMES, "X-Amz-Signature", "X-Amz-Content-Sha256", "AWSAccessKeyId", "Signature"]
HEADERS = [
    *("copy-source", "copy-source-range", "copy-source-if-match", "copy-source-if-modified-since", "acl"),
    *("object-lock-mode", "object-lock-retain-until-date", "object-lock-legal-hold", "tagging", "meta-a"),
    *("storage-class", "server-side-encryption", "server-side-encryption-aws-kms-key-id", "trailer"),
    *("server-side-encryption-customer-algorithm", "server-side-encryption-customer-key", "grant-read"),
    *("server-side-encryption-customer-key-md5", "expected-bucket-owner", "security-token", "date"),
    *("checksum-type", "checksum-algorithm", "sdk-checksum-algorithm", "decoded-content-length", "meta-"),
    *("if-match-size", "if-match-last-modified-time", "object-attributes", "max-parts", "checksum-mode"),
    *("part-number-marker", "mp-object-size", "metadata-directive", "bypass-governance-retention"),
    *(f"checksum-{each.lower()}" for each in ChecksumAlgorithm),
]
NAMES = st.one_of(
    st.sampled_from(SIGNING),
    st.sampled_from([f"x-amz-{each}" for each in HEADERS]),
    st.sampled_from([f"X-Amz-{each.title()}" for each in HEADERS]),
    st.sampled_from(sorted(operations.SUBRESOURCES)),
    st.sampled_from(
        ["prefix", "max-keys", "encoding-type", "versionId", "response-content-type", "list-type"]
    ),
    st.text(max_size=20),
)
VALUES = st.one_of(
    st.sampled_from(
        [
            *("", "0", "-1", "9" * 30, "1", "true", "AES256", "aws:kms", "GOVERNANCE", "ON", "private"),
            *("AWS4-HMAC-SHA256", "20261128T000000Z", "00010101T000000Z", "99991231T235959Z", "60", "host"),
            *("NCAKOWNER0000000/20261128/eu-north1/s3/aws4_request", "0" * 64, "STREAMING-x", "AAAAAA=="),
            *("bytes=0-1", "bytes=-5", "Fri, 24 May 99999999999999 00:00:00 GMT", "url", "2026-01-01"),
            *(
                "0001-01-01T00:00:00+23:59",
                "/b/k?versionId=",
                "%ff",
                "\x00",
                "\r\n",
                "ä€\U0001f600",
                "host;x",
            ),
            *("CRC32", "a=b&c", "a/b"),
        ]
    ),
    st.text(max_size=40),
    st.integers().map(str),
)
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=12)
NOW = datetime(2026, 11, 28, tzinfo=UTC)


def refused_or_read(read: Callable[[], object]) -> None:
    try:
        read()
    except S3Error as error:
        assert error.status < 500 or error.status in (501, 503)


def scope(method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]]) -> dict[str, object]:
    return {
        "type": "http",
        "method": method,
        "raw_path": quote(path).encode(),
        "path": path,
        "query_string": query,
        "headers": [(b"host", b"127.0.0.1"), *headers],
        "client": ("127.0.0.1", 1),
        "scheme": "http",
    }


def _check_signature(request: S3Request) -> None:
    signed = signature.parse(request.incoming)
    if signed is not None:
        signature.check_time(signed, NOW)
        signature.check_headers(signed, request.incoming.headers)
        signature.verify(signed, request.incoming, bytes(32))


_READERS: tuple[Callable[[S3Request], object], ...] = (
    _check_signature,
    operations.recognize,
    fields.attributes,
    fields.copy_source,
    fields.customer_key,
    lambda request: fields.customer_key(request, of_source=True),
    fields.read_conditions,
    fields.write_conditions,
    fields.delete_conditions,
    fields.checksum_type,
    lambda request: fields.checksum(request.headers),
    lambda request: fields.copy_range(request.header("x-amz-copy-source-range")),
    lambda request: fields.byte_range(request.header("range")),
    lambda request: request.number("max-keys", 1000, 1000),
)


@settings(max_examples=150)
@given(
    st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "X"]),
    st.sampled_from(["/", "/b", "/b/k", "/b/ä"]),
    PAIRS,
    PAIRS,
)
def test_made_up_requests(
    method: str, path: str, query: list[tuple[str, str]], headers: list[tuple[str, str]]
) -> None:
    text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    sent = [(name.encode("utf-8"), value.encode("utf-8")) for name, value in headers]
    given_scope = scope(method, path, text.encode(), sent)
    try:
        request = read_request(given_scope, "id", ())
    except S3Error:
        return
    assert not any(name.lower().startswith("x-amz-") for name in request.query)
    for read in _READERS:
        refused_or_read(lambda read=read: read(request))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_made_up_bytes(query: bytes) -> None:
    raw = query.replace(b" ", b"+").replace(b"#", b"")
    refused_or_read(lambda: read_request(scope("GET", "/b/k", raw, []), "id", ()))
    as_sent = quote_from_bytes(query, safe="&=%+").encode()
    refused_or_read(lambda: read_request(scope("PUT", "/b/k", as_sent, []), "id", ()))


def test_every_header_of_the_query_is_one_or_is_of_the_signature() -> None:
    """Nothing that begins with x-amz- is left where nobody looks."""
    pairs = [
        (f"X-Amz-{each}".encode(), b"v") for each in ("Anything", "Meta-A", "Date", "Signature", "Expires")
    ]
    found = request.with_query({"range": "bytes=0-1"}, pairs)
    assert found == {"range": "bytes=0-1", "x-amz-anything": "v", "x-amz-meta-a": "v"}


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "HEAD"])
def test_made_up_headers_of_signed_links(s3: Served, bucket: str, method: str) -> None:
    names = st.sampled_from([f"x-amz-{each}" for each in HEADERS])
    others = st.sampled_from(
        ["uploads", "versions", "tagging", "partNumber", "uploadId", "attributes", "delete"]
    )
    with httpx.Client(trust_env=False) as client:

        @settings(max_examples=40)
        @given(
            st.sampled_from(["", "/k", "/k%2Fä"]),
            st.lists(st.tuples(st.one_of(names, names, others), VALUES), max_size=5),
        )
        def check(key: str, query: list[tuple[str, str]]) -> None:
            text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
            url = s3.url + presigned(s3, method, f"/{bucket}{quote(key, safe='/%')}?{text}")
            answer = client.request(method, url, content=b"hello" if method in ("PUT", "POST") else None)
            assert answer.status_code < 500 or answer.status_code == 501, (url, answer.text)

        check()
