"""Hostile clients: spoilt bodies, wrong lengths, unread bodies, hostile keys, XML and forms."""

import base64
import binascii
import json
import socket
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from neocloud.object_gateway.s3 import signature
from tests.fast.object_gateway.s3.raw import code_of, presigned, signed_head, status_of
from tests.fast.object_gateway.s3.served import REGION, Served, error_of, read_all
from tests.fast.object_store.stores import files

STREAM = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
CLOSE = {"Connection": "close"}


def put(
    s3: Served, target: str, body: bytes, headers: dict[str, str] | None = None, *, payload: str
) -> bytes:
    length = {"Content-Length": str(len(body)), **CLOSE}
    return s3.raw(signed_head(s3, "PUT", target, {**length, **(headers or {})}, payload=payload) + body)


def trailer_stream(body: bytes, crc: str) -> tuple[bytes, dict[str, str]]:
    data = b"%x\r\n%s\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n" % (len(body), body, crc.encode())
    headers = {
        "x-amz-decoded-content-length": str(len(body)),
        "x-amz-trailer": "x-amz-checksum-crc32",
        "content-encoding": "aws-chunked",
    }
    return data, headers


def crc_of(body: bytes) -> str:
    return base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode()


def test_streams_with_trailers(s3: Served, bucket: str) -> None:
    body = b"x" * 100_000
    data, headers = trailer_stream(body, crc_of(body))
    assert status_of(put(s3, f"/{bucket}/k", data, headers, payload=STREAM)) == 200
    found = s3.client().get_object(Bucket=bucket, Key="k")
    assert found["Body"].read() == body and "ContentEncoding" not in found
    data, headers = trailer_stream(body, crc_of(b"other"))
    refused = put(s3, f"/{bucket}/w", data, headers, payload=STREAM)
    assert (status_of(refused), code_of(refused)) == (400, "BadDigest")
    data, headers = trailer_stream(body, crc_of(body))
    headers["x-amz-decoded-content-length"] = "5"
    refused = put(s3, f"/{bucket}/w", data, headers, payload=STREAM)
    assert (status_of(refused), code_of(refused)) == (400, "IncompleteBody")
    missing = b"5\r\nhello\r\n0\r\n\r\n"
    headers["x-amz-decoded-content-length"] = "5"
    refused = put(s3, f"/{bucket}/w", missing, headers, payload=STREAM)
    assert (status_of(refused), code_of(refused)) == (400, "MalformedTrailerError")
    assert error_of(s3.client().head_object, Bucket=bucket, Key="w")[0] == 404


def test_a_body_that_is_not_what_was_signed(s3: Served, bucket: str) -> None:
    refused = put(s3, f"/{bucket}/k", b"other", payload="0" * 64)
    assert (status_of(refused), code_of(refused)) == (400, "XAmzContentSHA256Mismatch")
    assert error_of(s3.client().head_object, Bucket=bucket, Key="k")[0] == 404


def test_a_half_body_leaves_nothing(s3: Served, bucket: str) -> None:
    before = len(files(s3.home / "objects"))
    head = signed_head(s3, "PUT", f"/{bucket}/k", {"Content-Length": str(10 * 1024**2)})
    with socket.create_connection(s3.address) as connection:
        connection.sendall(head + bytes(3 * 1024**2))
    s3.client().put_object(Bucket=bucket, Key="after", Body=b"x")
    assert error_of(s3.client().head_object, Bucket=bucket, Key="k")[0] == 404
    for _ in range(200):
        if len(files(s3.home / "objects")) == before:
            return
        s3.client().head_bucket(Bucket=bucket)
    pytest.fail("A blob of the half body is left.")


def test_a_refused_body_is_not_the_next_request(s3: Served, bucket: str) -> None:
    """Bytes sent as a body must never be served as a request of its own."""
    smuggled = f"GET {presigned(s3, 'GET', f'/{bucket}')} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    body = smuggled * (3 * 1024**2 // len(smuggled))
    head = signed_head(s3, "PUT", f"/{bucket}-none/k", {"Content-Length": str(len(body))})
    with socket.create_connection(s3.address, timeout=10) as connection:
        connection.sendall(head)
        answer = connection.recv(65536)
        assert status_of(answer) == 404 and b"connection: close" in answer.lower()
        try:
            connection.sendall(body)
            answer += read_all(connection)
        except OSError:
            pass  # the server has closed
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_short_refused_body_keeps_the_connection(s3: Served, bucket: str) -> None:
    head = signed_head(s3, "PUT", f"/{bucket}-none/k", {"Content-Length": "5"})
    again = signed_head(s3, "GET", f"/{bucket}", CLOSE)
    answer = s3.raw(head + b"hello" + again)
    assert answer.count(b"HTTP/1.1 ") == 2 and b"HTTP/1.1 200" in answer


def test_100_continue_comes_after_the_check(s3: Served, bucket: str) -> None:
    more = {"Content-Length": "5", "Expect": "100-continue"}
    with socket.create_connection(s3.address, timeout=10) as connection:
        connection.sendall(signed_head(s3, "PUT", f"/{bucket}/k", CLOSE, more=more))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hello")
        assert b"HTTP/1.1 200" in read_all(connection)
    outsider = s3.account(permissions=frozenset())
    answer = s3.raw(signed_head(s3, "PUT", f"/{bucket}/k", account=outsider, more=more))
    assert status_of(answer) == 403 and b"connection: close" in answer.lower()
    assert b" 100 " not in answer


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/%ff", 400),
        ("/" + "k" * 1025, 400),
        ("/" + "%C3%A4" * 513, 400),
        ("/?prefix=%ff", 400),
        ("/?max-keys=x", 400),
        ("/?max-keys=-1", 400),
        ("/?encoding-type=x", 400),
    ],
)
def test_hostile_targets(s3: Served, bucket: str, path: str, code: int) -> None:
    head = signed_head(s3, "GET", f"/{bucket}{path}", CLOSE)
    assert status_of(s3.raw(head)) == code


@pytest.mark.parametrize(
    "key", ["..", "../../etc/passwd", "a/../b", "/", "//", "a\x00b", "\x01", "k" * 1024, "a\nb"]
)
def test_odd_keys_are_names_and_nothing_else(s3: Served, bucket: str, key: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    assert [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    assert not (s3.home.parent / "etc").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<a",
        b"<Delete/>",
        b"<Other><Object><Key>k</Key></Object></Other>",
        b'<!DOCTYPE x [<!ENTITY a "b">]><Delete><Object><Key>&a;</Key></Object></Delete>',
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><Delete><Object><Key>k</Key></Object></Delete>',
        b"<Delete>" + b"<a>" * 50 + b"</a>" * 50 + b"</Delete>",
        b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>",
        b"<Delete>" + b"<a/>" * 100_000 + b"</Delete>",
        b"<Delete><Object><VersionId>x</VersionId></Object></Delete>",
    ],
)
def test_hostile_xml(s3: Served, bucket: str, body: bytes) -> None:
    head = signed_head(s3, "POST", f"/{bucket}?delete", {"Content-Length": str(len(body)), **CLOSE})
    answer = s3.raw(head + body)
    assert status_of(answer) == 400 and code_of(answer) in ("MalformedXML", "MissingRequestBodyError")


def test_long_documents_are_refused_before_they_are_read(s3: Served, bucket: str) -> None:
    head = signed_head(s3, "POST", f"/{bucket}?delete", {"Content-Length": str(100 * 1024**2)})
    answer = s3.raw(head)
    assert (status_of(answer), code_of(answer)) == (400, "EntityTooLarge")


def test_lengths(s3: Served, bucket: str) -> None:
    large = {"Content-Length": str(5 * 1024**3 + 1)}
    answer = s3.raw(signed_head(s3, "PUT", f"/{bucket}/k", large))
    assert (status_of(answer), code_of(answer)) == (400, "EntityTooLarge")
    answer = s3.raw(
        signed_head(s3, "PUT", f"/{bucket}/k", {**CLOSE, "Transfer-Encoding": "chunked"}) + b"0\r\n\r\n"
    )
    assert (status_of(answer), code_of(answer)) == (411, "MissingContentLength")


def test_clocks(s3: Served, bucket: str) -> None:
    head = signed_head(s3, "GET", f"/{bucket}", CLOSE)
    day = datetime.now(UTC)
    old = f"{day - timedelta(minutes=20):%Y%m%dT%H%M%SZ}"
    lines = [
        b"X-Amz-Date: " + old.encode() if line.startswith(b"X-Amz-Date") else line
        for line in head.split(b"\r\n")
    ]
    answer = s3.raw(b"\r\n".join(lines))
    assert status_of(answer) == 403 and code_of(answer) in ("RequestTimeTooSkewed", "SignatureDoesNotMatch")
    for authorization in ("AWS a:b", "Basic YTpi", ""):
        lines = f"Host: x\r\nAuthorization: {authorization}\r\nConnection: close"
        raw = f"GET /{bucket} HTTP/1.1\r\n{lines}\r\n\r\n"
        assert status_of(s3.raw(raw.encode())) == 400


def form(
    s3: Served, bucket: str, conditions: list[object], fields: dict[str, str], body: bytes
) -> httpx.Response:
    made = s3.client().generate_presigned_post(bucket, fields.get("key", "k"), Conditions=conditions)
    given = {**made["fields"], **fields}
    return httpx.post(made["url"], data=given, files={"file": ("name.txt", body)})


def test_forms(s3: Served, bucket: str) -> None:
    free: list[object] = [["starts-with", "$x-amz-meta-a", ""], ["content-length-range", 1, 10]]
    answer = form(s3, bucket, free, {"x-amz-meta-a": "ä\r\nb"}, b"hello")
    assert answer.status_code == 204, answer.text
    found = s3.client().get_object(Bucket=bucket, Key="k")
    assert found["Body"].read() == b"hello" and list(found["Metadata"]) == ["a"]
    assert form(s3, bucket, free, {"x-amz-meta-a": ""}, b"x" * 11).status_code == 400
    assert form(s3, bucket, free, {"x-amz-meta-a": ""}, b"").status_code == 400
    assert form(s3, bucket, free, {"x-amz-meta-a": "", "x-amz-meta-b": ""}, b"x").status_code == 403
    assert form(s3, bucket, free, {"x-amz-meta-a": "", "policy": "e30="}, b"x").status_code == 403
    assert form(s3, bucket, [], {"x-amz-signature": "0" * 64}, b"x").status_code == 403
    made = s3.client().generate_presigned_post(bucket, "k")
    other = httpx.post(made["url"], data={**made["fields"], "key": "other"}, files={"file": b"x"})
    assert other.status_code == 403
    unsigned = httpx.post(f"{s3.url}/{bucket}", data={"key": "k"}, files={"file": b"x"})
    assert unsigned.status_code == 403
    for content in (
        b"",
        b"--x\r\n",
        b"--x--\r\n",
        b"garbage",
        b"--x\r\nContent-Disposition: form-data; name=key\r\n\r\n" + b"k" * 30_000,
    ):
        broken = httpx.post(
            f"{s3.url}/{bucket}", content=content, headers={"Content-Type": "multipart/form-data; boundary=x"}
        )
        assert broken.status_code == 400, content
    expired = json.dumps({"expiration": "2020-01-01T00:00:00Z", "conditions": []})
    assert (
        form(s3, bucket, [], {"policy": base64.b64encode(expired.encode()).decode()}, b"x").status_code == 403
    )


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([{"key": "k"}], 403),
        ([["starts-with", "$key", ""]], 403),
        ([{"key": "k"}, {"bucket": "another"}], 403),
        ([{"key": "k"}, ["starts-with", "$bucket", "none"]], 403),
        ([{"key": "k"}, ["starts-with", "$bucket", ""]], 204),
        ([{"key": "k"}, ["eq", "$Bucket", "HERE"]], 204),
    ],
)
def test_a_policy_names_its_bucket(s3: Served, bucket: str, conditions: list[object], expected: int) -> None:
    """Otherwise a form that was made for one bucket would write into each one that its signer may write."""
    now = datetime.now(UTC)
    credential = f"{s3.owner.aws_access_key_id}/{now:%Y%m%d}/{REGION}/s3/aws4_request"
    given = {
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": credential,
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
    }
    filled: list[object] = json.loads(json.dumps(conditions).replace("HERE", bucket))
    policy = {
        "expiration": f"{now + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}",
        "conditions": [*filled, *({name: value} for name, value in given.items())],
    }
    text = base64.b64encode(json.dumps(policy).encode()).decode()
    key = signature.signing_key(s3.owner.secret, f"{now:%Y%m%d}", REGION)
    signed = {**given, "key": "k", "policy": text, "x-amz-signature": signature.sign(key, text)}
    answer = httpx.post(f"{s3.url}/{bucket}", data=signed, files={"file": b"x"})
    assert answer.status_code == expected, answer.text


def test_health(s3: Served) -> None:
    assert httpx.get(f"{s3.url}/-/health").text == "ok\n"
