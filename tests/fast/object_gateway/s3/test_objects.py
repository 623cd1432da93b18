"""Objects by unmodified boto3, with its defaults: put, get, head, delete, ranges, conditions, copies."""

import base64
import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tests.fast.object_gateway.s3.served import Served, error_of

KIB, MIB = 1024, 1024**2


@pytest.mark.parametrize("style", ["path", "virtual"])
@pytest.mark.parametrize("size", [0, 10, 16 * KIB + 1, 3 * MIB])
def test_round_trip(s3: Served, bucket: str, style: str, size: int) -> None:
    client = s3.client(style=style)
    body = bytes(each % 251 for each in range(size))
    put = client.put_object(Bucket=bucket, Key="a/b c+ä%", Body=body, Metadata={"one": "two"})
    got = client.get_object(Bucket=bucket, Key="a/b c+ä%")
    assert got["Body"].read() == body
    assert got["ETag"] == put["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    assert got["Metadata"] == {"one": "two"} and got["ContentLength"] == size


def test_a_stream_of_unknown_kind(s3: Served, bucket: str) -> None:
    client = s3.client()
    body = bytes(5 * MIB)
    client.put_object(Bucket=bucket, Key="k", Body=io.BytesIO(body))
    assert client.head_object(Bucket=bucket, Key="k")["ContentLength"] == len(body)


def test_headers_are_kept_and_overridden(s3: Served, bucket: str) -> None:
    client = s3.client()
    client.put_object(
        Bucket=bucket,
        Key="k",
        Body=b"x",
        ContentType="text/plain",
        CacheControl="no-store",
        ContentDisposition="attachment",
        ContentEncoding="gzip",
        ContentLanguage="de",
    )
    found = client.head_object(Bucket=bucket, Key="k")
    assert found["ContentType"] == "text/plain" and found["CacheControl"] == "no-store"
    assert found["ContentEncoding"] == "gzip" and found["ContentLanguage"] == "de"
    shown = client.get_object(Bucket=bucket, Key="k", ResponseContentType="text/html")
    assert shown["ContentType"] == "text/html" and shown["ContentDisposition"] == "attachment"
    plain = client.put_object(Bucket=bucket, Key="plain", Body=b"x")
    assert plain["ServerSideEncryption"] == "AES256"
    assert client.head_object(Bucket=bucket, Key="plain")["ContentType"] == "binary/octet-stream"


def test_ranges(s3: Served, bucket: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    for range, expected, shown in (
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
        ("bytes=5-100", b"56789", "bytes 5-9/10"),
    ):
        got = client.get_object(Bucket=bucket, Key="k", Range=range)
        assert (got["Body"].read(), got["ContentRange"]) == (expected, shown)
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    whole = client.get_object(Bucket=bucket, Key="k", Range="bytes=1-2,4-5")
    assert whole["Body"].read() == b"0123456789" and "ContentRange" not in whole
    assert error_of(client.get_object, Bucket=bucket, Key="k", Range="bytes=10-") == (416, "InvalidRange")
    assert client.head_object(Bucket=bucket, Key="k", Range="bytes=2-4")["ContentLength"] == 3


def test_ranges_of_nothing(s3: Served, bucket: str) -> None:
    """The last bytes of an empty object are none of them; no other range is there."""
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"")
    for call in (client.get_object, client.head_object):
        for range in ("bytes=-1", "bytes=-8", "bytes=-999999999999999999"):
            found = call(Bucket=bucket, Key="k", Range=range)
            assert found["ResponseMetadata"]["HTTPStatusCode"] == 200 and "ContentRange" not in found
            assert found["ContentLength"] == 0
        for range in ("bytes=-0", "bytes=0-0", "bytes=0-", "bytes=1-"):
            assert error_of(call, Bucket=bucket, Key="k", Range=range)[0] == 416
        assert call(Bucket=bucket, Key="k", PartNumber=1)["ContentLength"] == 0


def test_conditional_reads(s3: Served, bucket: str) -> None:
    client = s3.client()
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    past, future = datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1)
    for call in (client.get_object, client.head_object):
        call(Bucket=bucket, Key="k", IfMatch=etag, IfUnmodifiedSince=past)
        assert error_of(call, Bucket=bucket, Key="k", IfMatch='"other"')[0] == 412
        assert error_of(call, Bucket=bucket, Key="k", IfNoneMatch=etag)[0] == 304
        assert error_of(call, Bucket=bucket, Key="k", IfModifiedSince=future)[0] == 304
        assert error_of(call, Bucket=bucket, Key="k", IfUnmodifiedSince=past)[0] == 412


def test_conditional_writes_have_one_winner(s3: Served, bucket: str) -> None:
    client = s3.client()

    def put(number: int) -> int:
        try:
            client.put_object(Bucket=bucket, Key="k", Body=str(number), IfNoneMatch="*")
        except client.exceptions.ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"]
        return 200

    with ThreadPoolExecutor(16) as pool:
        outcomes = sorted(pool.map(put, range(16)))
    assert outcomes == [200] + [412] * 15
    etag = client.head_object(Bucket=bucket, Key="k")["ETag"]
    client.put_object(Bucket=bucket, Key="k", Body=b"new", IfMatch=etag)
    assert error_of(client.put_object, Bucket=bucket, Key="k", Body=b"", IfMatch=etag) == (
        412,
        "PreconditionFailed",
    )
    assert error_of(client.put_object, Bucket=bucket, Key="none", Body=b"", IfMatch=etag) == (
        404,
        "NoSuchKey",
    )


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksums(s3: Served, bucket: str, algorithm: str) -> None:
    client = s3.client()
    put = client.put_object(Bucket=bucket, Key="k", Body=b"hello", ChecksumAlgorithm=algorithm)
    name = f"Checksum{algorithm}"
    got = client.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert got["Body"].read() == b"hello" and got[name] == put[name]
    wrong = base64.b64encode(bytes(len(base64.b64decode(put[name])))).decode()
    assert error_of(client.put_object, Bucket=bucket, Key="w", Body=b"hello", **{name: wrong}) == (
        400,
        "BadDigest",
    )
    assert error_of(client.head_object, Bucket=bucket, Key="w")[0] == 404
    found = client.get_object_attributes(
        Bucket=bucket, Key="k", ObjectAttributes=["ETag", "Checksum", "ObjectSize", "StorageClass"]
    )
    assert found["Checksum"][name] == put[name] and found["ObjectSize"] == 5


def test_content_md5(s3: Served, bucket: str) -> None:
    client = s3.client()
    right = base64.b64encode(hashlib.md5(b"hello").digest()).decode()
    client.put_object(Bucket=bucket, Key="k", Body=b"hello", ContentMD5=right)
    assert (
        error_of(client.put_object, Bucket=bucket, Key="k", Body=b"other", ContentMD5=right)[1] == "BadDigest"
    )
    assert error_of(client.put_object, Bucket=bucket, Key="k", Body=b"", ContentMD5="x")[1] == "InvalidDigest"


def test_delete_and_what_is_not_there(s3: Served, bucket: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    client.delete_object(Bucket=bucket, Key="k")
    client.delete_object(Bucket=bucket, Key="k")
    assert error_of(client.get_object, Bucket=bucket, Key="k") == (404, "NoSuchKey")
    assert error_of(client.head_object, Bucket=bucket, Key="k")[0] == 404
    assert error_of(client.get_object, Bucket="no-such-bucket", Key="k") == (404, "NoSuchBucket")
    for key in ("one", "two<&>"):
        client.put_object(Bucket=bucket, Key=key, Body=b"x")
    done = client.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": "one"}, {"Key": "two<&>"}, {"Key": "none"}]}
    )
    assert {each["Key"] for each in done["Deleted"]} == {"one", "two<&>", "none"}
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_copies(s3: Served, bucket: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="a ä?", Body=b"hello", Metadata={"one": "1"}, Tagging="t=v")
    copy = client.copy_object(Bucket=bucket, Key="b", CopySource={"Bucket": bucket, "Key": "a ä?"})
    assert copy["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    found = client.get_object(Bucket=bucket, Key="b")
    assert found["Body"].read() == b"hello" and found["Metadata"] == {"one": "1"} and found["TagCount"] == 1
    client.copy_object(
        Bucket=bucket,
        Key="b",
        CopySource={"Bucket": bucket, "Key": "b"},
        MetadataDirective="REPLACE",
        Metadata={"two": "2"},
        TaggingDirective="REPLACE",
    )
    found = client.head_object(Bucket=bucket, Key="b")
    assert found["Metadata"] == {"two": "2"} and "TagCount" not in found
    same = {"Bucket": bucket, "Key": "b", "CopySource": {"Bucket": bucket, "Key": "b"}}
    assert error_of(client.copy_object, **same) == (400, "InvalidRequest")
    source = {"Bucket": bucket, "Key": "none"}
    assert error_of(client.copy_object, Bucket=bucket, Key="c", CopySource=source) == (404, "NoSuchKey")
    source = {"Bucket": bucket, "Key": "b"}
    assert error_of(
        client.copy_object, Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch='"other"'
    ) == (412, "PreconditionFailed")


def test_tags(s3: Served, bucket: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="a=1&b=")
    assert client.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [
        {"Key": "a", "Value": "1"},
        {"Key": "b", "Value": ""},
    ]
    client.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": "c", "Value": "ü"}]})
    assert client.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "c", "Value": "ü"}]
    client.delete_object_tagging(Bucket=bucket, Key="k")
    assert client.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []
    many = [{"Key": str(each), "Value": ""} for each in range(11)]
    assert error_of(client.put_object_tagging, Bucket=bucket, Key="k", Tagging={"TagSet": many})[0] == 400


def test_keys_of_the_client(s3: Served, bucket: str) -> None:
    client = s3.client()
    key = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": bytes(range(32))}
    client.put_object(Bucket=bucket, Key="k", Body=b"secret", **key)
    assert client.get_object(Bucket=bucket, Key="k", **key)["Body"].read() == b"secret"
    assert error_of(client.get_object, Bucket=bucket, Key="k")[0] == 400
    other = {**key, "SSECustomerKey": bytes(32)}
    assert error_of(client.get_object, Bucket=bucket, Key="k", **other)[0] == 400
    assert error_of(client.put_object, Bucket=bucket, Key="k", Body=b"", ServerSideEncryption="aws:kms") == (
        501,
        "NotImplemented",
    )


def test_lists(s3: Served, bucket: str) -> None:
    client = s3.client()
    keys = ["a/1", "a/2", "b", "c d/ä", "ü", "😀", "\uffee"]
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"x")
    ordered = sorted(keys, key=str.encode)
    listed = client.list_objects_v2(Bucket=bucket)
    assert [each["Key"] for each in listed["Contents"]] == ordered and listed["KeyCount"] == 7
    assert [each["Key"] for each in client.list_objects(Bucket=bucket)["Contents"]] == ordered
    page = client.list_objects_v2(Bucket=bucket, Delimiter="/", MaxKeys=2)
    assert [each["Prefix"] for each in page["CommonPrefixes"]] == ["a/"] and page["IsTruncated"]
    found: list[str] = []
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 1}
    ):
        found += [each["Key"] for each in page.get("Contents", ())]
        found += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
    assert found == ["a/", "b", "c d/", "ü", "\uffee", "😀"]
    found = []
    for page in client.get_paginator("list_objects").paginate(
        Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 2}
    ):
        found += [each["Key"] for each in page.get("Contents", ())]
        found += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
    assert sorted(found) == sorted(["a/", "b", "c d/", "ü", "\uffee", "😀"])
    assert client.list_objects_v2(Bucket=bucket, StartAfter="b", Prefix="c")["KeyCount"] == 1
    assert client.list_objects_v2(Bucket=bucket, MaxKeys=0)["KeyCount"] == 0
    assert error_of(client.list_objects_v2, Bucket=bucket, ContinuationToken="%")[0] == 400


def test_versions(s3: Served, bucket: str) -> None:
    client = s3.client()
    assert "Status" not in client.get_bucket_versioning(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="k", Body=b"null")
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert client.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    one = client.put_object(Bucket=bucket, Key="k", Body=b"one")["VersionId"]
    two = client.put_object(Bucket=bucket, Key="k", Body=b"two")["VersionId"]
    marker = client.delete_object(Bucket=bucket, Key="k")
    assert marker["DeleteMarker"] and marker["VersionId"] not in (one, two)
    with pytest.raises(client.exceptions.NoSuchKey) as refused:
        client.get_object(Bucket=bucket, Key="k")
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-delete-marker"] == "true"
    assert error_of(client.get_object, Bucket=bucket, Key="k", VersionId=marker["VersionId"]) == (
        405,
        "MethodNotAllowed",
    )
    got = client.get_object(Bucket=bucket, Key="k", VersionId=one)
    assert got["Body"].read() == b"one" and got["VersionId"] == one
    assert client.get_object(Bucket=bucket, Key="k", VersionId="null")["Body"].read() == b"null"
    listed = client.list_object_versions(Bucket=bucket)
    assert [each["VersionId"] for each in listed["Versions"]] == [two, one, "null"]
    assert [each["IsLatest"] for each in listed["DeleteMarkers"]] == [True]
    pages = client.get_paginator("list_object_versions").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 1}
    )
    assert sum(len(page.get("Versions", ())) for page in pages) == 3
    undone = client.delete_object(Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    assert undone["DeleteMarker"]
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"two"
    copy = {"Bucket": bucket, "Key": "k", "VersionId": one}
    client.copy_object(Bucket=bucket, Key="k", CopySource=copy)
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"one"
    assert error_of(client.get_object, Bucket=bucket, Key="k", VersionId="none")[0] in (400, 404)
