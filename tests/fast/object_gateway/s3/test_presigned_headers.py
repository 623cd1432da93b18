"""Presigned URLs whose query has headers, as SDKs make them: each counts as if it had been a header."""

import base64
import hashlib
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from tests.fast.object_gateway.s3.raw import presigned
from tests.fast.object_gateway.s3.served import Served, error_of

KEY = bytes(range(32))
SSE_C = {
    "x-amz-server-side-encryption-customer-algorithm": "AES256",
    "x-amz-server-side-encryption-customer-key": base64.b64encode(KEY).decode(),
    "x-amz-server-side-encryption-customer-key-md5": base64.b64encode(hashlib.md5(KEY).digest()).decode(),
}
NOTHING = base64.b64encode(bytes(4)).decode()
"""The CRC32 of no byte."""


def send(
    s3: Served,
    target: str,
    query: dict[str, str],
    body: bytes = b"hello",
    *,
    method: str = "PUT",
    account: Any = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Send a request whose signature covers a query, and no header but the host."""
    mark = "&" if "?" in target else "?"
    url = presigned(s3, method, f"{target}{mark}{urlencode(query, quote_via=quote)}", account=account)
    return httpx.request(method, s3.url + url, content=body, headers=headers, trust_env=False)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.text.partition("<Code>")[2].partition("</Code>")[0]


@pytest.mark.parametrize("spelling", [str.lower, str.title], ids=["botocore", "go"])
def test_what_describes_an_object_is_kept(s3: Served, bucket: str, spelling: Any) -> None:
    query = {
        "x-amz-meta-colour": "dark red",
        "x-amz-tagging": "team=a&stage=b",
        "x-amz-storage-class": "ENHANCED_THROUGHPUT",
        "x-amz-website-redirect-location": "/other",
    }
    answer = send(s3, f"/{bucket}/k", {spelling(name): value for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    found = s3.client().get_object(Bucket=bucket, Key="k")
    assert found["Metadata"] == {"colour": "dark red"} and found["TagCount"] == 2
    assert found["StorageClass"] == "ENHANCED_THROUGHPUT" and found["WebsiteRedirectLocation"] == "/other"
    tags = s3.client().get_object_tagging(Bucket=bucket, Key="k")["TagSet"]
    assert {each["Key"]: each["Value"] for each in tags} == {"team": "a", "stage": "b"}


def test_a_copy_copies(s3: Served, bucket: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="from", Body=b"source")
    client.put_object(Bucket=bucket, Key="to", Body=b"before")
    source = {"x-amz-copy-source": f"{bucket}/from"}
    assert send(s3, f"/{bucket}/to", source, b"").status_code == 200
    assert client.get_object(Bucket=bucket, Key="to")["Body"].read() == b"source"
    assert code_of(send(s3, f"/{bucket}/to", {"x-amz-copy-source": f"{bucket}/none"}, b"")) == (
        404,
        "NoSuchKey",
    )
    assert client.get_object(Bucket=bucket, Key="to")["Body"].read() == b"source"
    upload = client.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
    ranged = {**source, "X-Amz-Copy-Source-Range": "bytes=1-3"}
    part = send(s3, f"/{bucket}/parts?partNumber=1&uploadId={upload}", ranged, b"")
    assert part.status_code == 200 and "CopyPartResult" in part.text
    etag = client.list_parts(Bucket=bucket, Key="parts", UploadId=upload)["Parts"][0]["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    client.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload=parts)
    assert client.get_object(Bucket=bucket, Key="parts")["Body"].read() == b"our"


def test_a_link_copies_nothing_that_its_signer_may_not_read(s3: Served, bucket: str) -> None:
    s3.client().put_object(Bucket=bucket, Key="from", Body=b"source")
    writer = s3.account(permissions=frozenset(("storage.objects.create",)))
    answer = send(s3, f"/{bucket}/to", {"x-amz-copy-source": f"{bucket}/from"}, b"", account=writer)
    assert code_of(answer) == (403, "AccessDenied")


def test_object_lock_locks(s3: Served) -> None:
    client = s3.client()
    assert send(s3, "/locked-by-query", {"x-amz-bucket-object-lock-enabled": "true"}, b"").status_code == 200
    assert "ObjectLockConfiguration" in client.get_object_lock_configuration(Bucket="locked-by-query")
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    query = {
        "x-amz-object-lock-mode": "GOVERNANCE",
        "x-amz-object-lock-retain-until-date": f"{until:%Y-%m-%dT%H:%M:%SZ}",
    }
    answer = send(s3, "/locked-by-query/k", query)
    assert answer.status_code == 200, answer.text
    found = client.get_object_retention(Bucket="locked-by-query", Key="k")["Retention"]
    assert found == {"Mode": "GOVERNANCE", "RetainUntilDate": until}
    version = answer.headers["x-amz-version-id"]
    target = f"/locked-by-query/k?versionId={version}"
    assert code_of(send(s3, target, {}, method="DELETE"))[0] == 403
    bypass = {"x-amz-bypass-governance-retention": "true"}
    assert send(s3, target, bypass, method="DELETE").status_code == 204
    assert send(s3, "/locked-by-query/held", {"x-amz-object-lock-legal-hold": "ON"}).status_code == 200
    assert client.get_object_legal_hold(Bucket="locked-by-query", Key="held")["LegalHold"]["Status"] == "ON"


def test_a_key_of_the_client_encrypts(s3: Served, bucket: str) -> None:
    assert send(s3, f"/{bucket}/k", SSE_C).status_code == 200
    assert error_of(s3.client().get_object, Bucket=bucket, Key="k")[0] == 400
    assert send(s3, f"/{bucket}/k", {}, method="GET").status_code == 400
    assert send(s3, f"/{bucket}/k", SSE_C, method="GET").text == "hello"
    wrong = {**SSE_C, "x-amz-server-side-encryption-customer-key-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}
    assert code_of(send(s3, f"/{bucket}/w", wrong)) == (400, "InvalidArgument")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"x-amz-acl": "public-read"}, (400, "AccessControlListNotSupported")),
        ({"X-Amz-Acl": "none-of-them"}, (400, "InvalidArgument")),
        ({"x-amz-grant-read": "id=everybody"}, (400, "AccessControlListNotSupported")),
        ({"x-amz-server-side-encryption": "aws:kms"}, (501, "NotImplemented")),
        ({"x-amz-server-side-encryption-aws-kms-key-id": "k"}, (400, "InvalidArgument")),
        ({"x-amz-storage-class": "GLACIER"}, (400, "InvalidStorageClass")),
        ({"x-amz-expected-bucket-owner": "project-of-others"}, (403, "AccessDenied")),
        ({"x-amz-tagging": "a=1&a=2"}, (400, "InvalidTag")),
        ({"x-amz-object-lock-mode": "GOVERNANCE"}, (400, "InvalidArgument")),
        ({"x-amz-security-token": "x"}, (400, "InvalidToken")),
        ({"X-Amz-Security-Token": "x"}, (400, "InvalidToken")),
        ({"x-amz-meta-a": "1\r\nSet-Cookie: x"}, (400, "InvalidArgument")),
        ({"x-amz-meta-a b": "1"}, (400, "InvalidArgument")),
        ({"x-amz-meta-long": "x" * 2100}, (400, "MetadataTooLarge")),
        ({"x-amz-meta-a": "1", "X-Amz-Meta-A": "2"}, (400, "InvalidArgument")),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_refused_in_a_header_is_refused(
    s3: Served, bucket: str, query: dict[str, str], expected: tuple[int, str]
) -> None:
    assert code_of(send(s3, f"/{bucket}/k", query)) == expected
    assert error_of(s3.client().head_object, Bucket=bucket, Key="k")[0] == 404


def test_a_header_that_comes_both_ways_has_to_agree(s3: Served, bucket: str) -> None:
    """A header beside the query has to be signed by its name, too."""
    signed = s3.client().generate_presigned_url(
        "put_object", {"Bucket": bucket, "Key": "k", "Metadata": {"a": "1"}}
    )
    assert "x-amz-meta-a" in signed
    assert httpx.put(signed, content=b"x", headers={"x-amz-meta-a": "1"}, trust_env=False).status_code == 200
    for value, expected in (("1", (403, "AccessDenied")), ("2", (400, "InvalidArgument"))):
        answer = send(s3, f"/{bucket}/w", {"x-amz-meta-a": "1"}, headers={"x-amz-meta-a": value})
        assert code_of(answer) == expected


def test_checksums_in_the_query(s3: Served, bucket: str) -> None:
    """SDKs write the checksum of no byte by default, before there is a body: it says nothing."""
    crc = base64.b64encode(zlib.crc32(b"hello").to_bytes(4, "big")).decode()
    name, algorithm = "x-amz-checksum-crc32", {"x-amz-sdk-checksum-algorithm": "CRC32"}
    client = s3.client()

    def put(query: dict[str, str], body: bytes = b"hello") -> tuple[int, str]:
        return code_of(send(s3, f"/{bucket}/k", query, body))

    assert put({name: NOTHING, **algorithm}) == (200, "")
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"hello"
    assert put({name: NOTHING, **algorithm}, b"") == (200, "")
    assert put({name: crc, **algorithm}) == (200, "")
    assert client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")["ChecksumCRC32"] == crc
    assert put({name: crc, **algorithm}, b"other") == (400, "BadDigest")
    assert put({name: "x"}) == (400, "InvalidRequest")
    assert put({name: crc, "x-amz-checksum-sha1": base64.b64encode(bytes(20)).decode()}) == (
        400,
        "InvalidRequest",
    )
    assert put({"x-amz-checksum-sha256": base64.b64encode(hashlib.sha256().digest()).decode()}) == (200, "")
    assert put({"X-Amz-Checksum-Sha256": base64.b64encode(bytes(32)).decode()}) == (400, "BadDigest")


@pytest.mark.parametrize("name", ["X-Amz-Content-Sha256", "x-amz-content-sha256"])
def test_the_hash_of_the_body_in_the_query(s3: Served, bucket: str, name: str) -> None:
    """It is what the signature covers of the body, so a link that was signed with another one is refused."""
    empty = hashlib.sha256().hexdigest()
    answer = send(s3, f"/{bucket}/k", {name: empty})
    assert code_of(answer) in ((403, "SignatureDoesNotMatch"), (400, "XAmzContentSHA256Mismatch"))
    assert send(s3, f"/{bucket}/k", {name: "UNSIGNED-PAYLOAD"}).status_code == 200
    for wrong in ("abc", "z" * 64, ""):
        assert code_of(send(s3, f"/{bucket}/k", {name: wrong})) == (400, "InvalidArgument")


@pytest.mark.parametrize(
    "seconds", ["0", "604801", "000000001999999999", "0000000019" + "9" * 30, "-1", "1.5", "٣", "9" * 5000]
)
def test_lifetimes_of_links(s3: Served, bucket: str, seconds: str) -> None:
    """Any client gets that far: the signature is checked later."""
    url = presigned(s3, "GET", f"/{bucket}/k").replace("X-Amz-Expires=60", f"X-Amz-Expires={quote(seconds)}")
    answer = httpx.get(s3.url + url, trust_env=False)
    assert code_of(answer) == (400, "AuthorizationQueryParametersError")


def test_the_longest_lifetime(s3: Served, bucket: str) -> None:
    s3.client().put_object(Bucket=bucket, Key="k", Body=b"x")
    for seconds in (1, 604_800):
        assert httpx.get(s3.url + presigned(s3, "GET", f"/{bucket}/k", expires=seconds)).status_code == 200
