"""Signatures against the examples of AWS's documentation, and against botocore's own signer."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote_to_bytes, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from neocloud.object_gateway.s3 import signature
from neocloud.object_gateway.s3.chunks import ChunkDecoder, new_decoder
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.signature import Incoming, Scope, Signed

ACCESS_KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HOST = "examplebucket.s3.amazonaws.com"
KEY = signature.signing_key(SECRET, "20130524", "us-east-1")
"""Of the examples in "Examples: Signature Calculations", which have all one day."""


def incoming(method: str, target: str, headers: dict[str, str]) -> Incoming:
    path, _, query = target.partition("?")
    pairs = [part.partition("=")[::2] for part in query.split("&") if part]
    decoded = [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, value in pairs]
    lower = {name.lower(): value for name, value in headers.items()}
    return Incoming(method, unquote_to_bytes(path), path.encode(), decoded, lower)


def header(names: str, found: str) -> str:
    credential = f"{ACCESS_KEY}/20130524/us-east-1/s3/aws4_request"
    return f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={found}"


@pytest.mark.parametrize(
    ("method", "target", "headers", "names", "expected"),
    [
        (
            "GET",
            "/test.txt",
            {"range": "bytes=0-9", "x-amz-content-sha256": EMPTY},
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            {
                "date": "Fri, 24 May 2013 00:00:00 GMT",
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
                "x-amz-content-sha256": "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            },
            "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "/?lifecycle",
            {"x-amz-content-sha256": EMPTY},
            "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "/?max-keys=2&prefix=J",
            {"x-amz-content-sha256": EMPTY},
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_examples_of_aws(
    method: str, target: str, headers: dict[str, str], names: str, expected: str
) -> None:
    given = {"host": HOST, "x-amz-date": "20130524T000000Z", **headers}
    request = incoming(method, target, {**given, "authorization": header(names, expected)})
    signed = signature.parse(request)
    assert signed is not None
    signature.verify(signed, request, KEY)
    wrong = incoming(method, target + "x", {**given, "authorization": header(names, expected)})
    with pytest.raises(S3Error, match="not the one computed"):
        signature.verify(signed, wrong, KEY)


def test_presigned_example_of_aws() -> None:
    expected = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    query = (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3"
        "%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        f"&X-Amz-Signature={expected}"
    )
    request = incoming("GET", f"/test.txt?{query}", {"host": HOST})
    signed = signature.parse(request)
    assert signed is not None and signed.is_presigned
    signature.verify(signed, request, KEY)
    now = datetime(2013, 5, 24, tzinfo=UTC)
    signature.check_time(signed, now + timedelta(hours=23))
    with pytest.raises(S3Error, match="expired"):
        signature.check_time(signed, now + timedelta(hours=25))
    with pytest.raises(S3Error, match="too large"):
        signature.check_time(signed, now - timedelta(minutes=16))


@pytest.mark.parametrize("key", ["k", "a b", "a//b", "ä/ü", "a+b&c=d", "..", "a/../b", "(1)!*'", "%25", "~"])
@pytest.mark.parametrize("is_presigned", [False, True])
def test_whatever_botocore_signs(key: str, is_presigned: bool) -> None:
    url = f"http://127.0.0.1:8902/bucket/{quote(key, safe='/~')}?tagging&x=a%20b"
    request = AWSRequest("GET", url, headers={"X-Amz-Meta-A": "  b   c "})
    credentials = Credentials(ACCESS_KEY, SECRET)
    kind = S3SigV4QueryAuth if is_presigned else S3SigV4Auth
    request.context["timestamp"] = "20130524T000000Z"
    kind(credentials, "s3", "us-east-1").add_auth(request)
    parts = urlsplit(request.url)
    received = incoming(
        "GET", f"{parts.path}?{parts.query}", {"host": "127.0.0.1:8902", **dict(request.headers.items())}
    )
    signed = signature.parse(received)
    assert signed is not None
    signature.check_headers(signed, received.headers)
    signature.verify(signed, received, signature.signing_key(SECRET, signed.scope.day, "us-east-1"))


def test_headers_that_are_not_signed_are_refused() -> None:
    scope = Scope(ACCESS_KEY, "20130524", "us-east-1")
    signed = Signed(scope, "20130524T000000Z", ("host",), "", signature.UNSIGNED, 60)
    signature.check_headers(signed, {"host": HOST, "range": "bytes=0-1"})
    for name in ("x-amz-copy-source", "x-amz-acl", "x-amz-meta-a", "content-md5"):
        with pytest.raises(S3Error) as refused:
            signature.check_headers(signed, {"host": HOST, name: "x"})
        assert refused.value.code == "AccessDenied" and refused.value.details["HeadersNotSigned"] == name
    with pytest.raises(S3Error):
        signature.check_headers(Signed(scope, "", (), "", "", None), {"host": HOST})


@pytest.mark.parametrize(
    "authorization",
    [
        "AWS AKIA:abc",
        "Bearer x",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=a",
        header("host", "x").replace("/s3/", "/ec2/"),
        header("host", "x").replace("20130524", "2013"),
        header("host", "x").replace(ACCESS_KEY, "a/b"),
    ],
)
def test_malformed_headers(authorization: str) -> None:
    headers = {"host": HOST, "x-amz-date": "20130524T000000Z", "x-amz-content-sha256": EMPTY}
    with pytest.raises(S3Error) as refused:
        signature.parse(incoming("GET", "/", {**headers, "authorization": authorization}))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "date",
    [
        "Fri, 24 May 99999999999999 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Fri, 24 May 2013 99:00:00 GMT",
        "x",
        "",
    ],
)
def test_dates_that_are_none(date: str) -> None:
    headers = {"host": HOST, "date": date, "x-amz-content-sha256": EMPTY}
    with pytest.raises(S3Error) as refused:
        signature.parse(incoming("GET", "/", {**headers, "authorization": header("host;date", "x")}))
    assert refused.value.code == "AccessDenied"


CHUNK_SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CHUNK_SIGNATURES = (
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
)
"""Of the example in "Transferring Payload in Multiple Chunks": 65,536 and 1,024 letters "a", and the end."""


def decoder(payload: str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", seed: str = CHUNK_SEED) -> ChunkDecoder:
    scope = Scope(ACCESS_KEY, "20130524", "us-east-1")
    return new_decoder(Signed(scope, "20130524T000000Z", ("host",), seed, payload), KEY)


def chunk(body: bytes, found: str) -> bytes:
    return b"%x;chunk-signature=%s\r\n%s\r\n" % (len(body), found.encode(), body)


CHUNKED = b"".join(
    chunk(body, found) for body, found in zip((b"a" * 65536, b"a" * 1024, b""), CHUNK_SIGNATURES, strict=True)
)


@pytest.mark.parametrize("step", [1, 7, 1000, 100_000])
def test_chunks_of_aws(step: int) -> None:
    found = decoder()
    body = b"".join(
        piece for start in range(0, len(CHUNKED), step) for piece in found.feed(CHUNKED[start : start + step])
    )
    found.finish()
    assert body == b"a" * 66560


@pytest.mark.parametrize(
    ("spoilt", "code"),
    [
        (CHUNKED.replace(b"aaaa", b"aaba", 1), "SignatureDoesNotMatch"),
        (CHUNKED.replace(b"0055627c", b"1055627c"), "SignatureDoesNotMatch"),
        (CHUNKED.replace(b"b6c6ea8a", b"a6c6ea8a"), "SignatureDoesNotMatch"),
        (CHUNKED[:65700], "IncompleteBody"),
        (CHUNKED[: -len(chunk(b"", CHUNK_SIGNATURES[2]))], "IncompleteBody"),
        (CHUNKED + b"x", "InvalidRequest"),
        (CHUNKED.replace(b"\r\n", b"\n", 1), "InvalidRequest"),
        (b"400\r\n" + b"a" * 1024 + b"\r\n0\r\n\r\n", "InvalidRequest"),
        (b"x" * 2000, "InvalidRequest"),
        (b"-1;chunk-signature=" + b"0" * 64 + b"\r\n", "InvalidRequest"),
        (b"fffffffffff;chunk-signature=" + b"0" * 64 + b"\r\n", "InvalidRequest"),
    ],
)
def test_spoilt_chunks(spoilt: bytes, code: str) -> None:
    found = decoder()
    with pytest.raises(S3Error) as refused:
        for _ in found.feed(spoilt):
            pass
        found.finish()
    assert refused.value.code == code


def test_signed_trailer_of_aws() -> None:
    """The example in "Signature calculations: including trailing headers"."""
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    signatures = (
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    )
    trailer = b"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:%s\r\n\r\n"
    last = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    body = chunk(b"a" * 65536, signatures[0]) + chunk(b"a" * 1024, signatures[1])
    end = b"0;chunk-signature=%s\r\n" % signatures[2].encode()
    found = decoder("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", seed)
    assert b"".join(found.feed(body + end + trailer % last.encode())) == b"a" * 66560
    found.finish()
    assert found.trailers == {"x-amz-checksum-crc32c": "sOO8/Q=="}
    spoilt = decoder("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", seed)
    with pytest.raises(S3Error) as refused:
        list(spoilt.feed(body + end + trailer.replace(b"sOO8", b"sOO9") % last.encode()))
    assert refused.value.code == "SignatureDoesNotMatch"


def test_many_small_chunks_are_refused() -> None:
    found = decoder("STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    with pytest.raises(S3Error) as refused:
        list(found.feed(b"1\r\na\r\n" * 5000))
    assert refused.value.code == "InvalidChunkSizeError"
