"""Multipart uploads by unmodified boto3."""

import hashlib
import io
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.types import Source
from tests.fast.object_gateway.s3.raw import code_of, signed_head, status_of
from tests.fast.object_gateway.s3.served import Served, error_of

MIB = 1024**2


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_parts_become_an_object(s3: Served, bucket: str, algorithm: str) -> None:
    client = s3.client()
    upload = client.create_multipart_upload(
        Bucket=bucket, Key="k", ChecksumAlgorithm=algorithm, Metadata={"a": "b"}
    )["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    bodies = [bytes([number]) * (5 * MIB if number < 3 else 10) for number in (1, 2, 3)]
    parts = []
    for number, body in enumerate(bodies, 1):
        done = client.upload_part(**where, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm)
        name = f"Checksum{algorithm}"
        parts.append({"PartNumber": number, "ETag": done["ETag"], name: done[name]})
    assert [each["Size"] for each in client.list_parts(**where)["Parts"]] == [5 * MIB, 5 * MIB, 10]
    assert [each["UploadId"] for each in client.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [upload]
    done = client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
    md5 = hashlib.md5(b"".join(hashlib.md5(body).digest() for body in bodies)).hexdigest()
    assert done["ETag"] == f'"{md5}-3"'
    again = client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
    assert again["ETag"] == done["ETag"]
    got = client.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert got["Body"].read() == b"".join(bodies) and got["Metadata"] == {"a": "b"}
    assert got[f"Checksum{algorithm}"] == done[f"Checksum{algorithm}"]
    second = client.get_object(Bucket=bucket, Key="k", PartNumber=2)
    assert second["Body"].read() == bodies[1] and second["PartsCount"] == 3
    assert second[f"Checksum{algorithm}"] == parts[1][f"Checksum{algorithm}"]
    assert second["ChecksumType"] == got["ChecksumType"]
    assert client.head_object(Bucket=bucket, Key="k", PartNumber=3)["ContentLength"] == 10
    assert error_of(client.get_object, Bucket=bucket, Key="k", PartNumber=4)[0] == 416
    found = client.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ObjectParts"])
    assert found["ObjectParts"]["TotalPartsCount"] == 3
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


@pytest.mark.parametrize(
    ("algorithm", "type"),
    [("CRC32", "FULL_OBJECT"), ("CRC32", "COMPOSITE"), ("CRC64NVME", "FULL_OBJECT"), ("SHA256", "COMPOSITE")],
)
def test_the_checksum_of_the_whole_object(s3: Served, bucket: str, algorithm: str, type: str) -> None:
    """On completion it is in the headers, which are not about the document that names the parts."""
    client, name = s3.client(), f"Checksum{algorithm}"

    def upload() -> dict[str, Any]:
        made = client.create_multipart_upload(
            Bucket=bucket, Key="k", ChecksumAlgorithm=algorithm, ChecksumType=type
        )
        where = {"Bucket": bucket, "Key": "k", "UploadId": made["UploadId"]}
        done = client.upload_part(**where, PartNumber=1, Body=b"hello", ChecksumAlgorithm=algorithm)
        part = {"PartNumber": 1, "ETag": done["ETag"], name: done[name]}
        return {**where, "MultipartUpload": {"Parts": [part]}}

    expected = client.complete_multipart_upload(**upload())[name]
    again = upload()
    wrong = "AAAA" + expected[4:]
    complete = client.complete_multipart_upload
    assert error_of(complete, **again, **{name: wrong}) == (400, "BadDigest")
    assert complete(**again, **{name: expected})[name] == expected
    # MinIO's clients leave out the number of parts.
    assert error_of(complete, **upload(), **{name: f"{expected.partition('-')[0]}-2"}) == (400, "BadDigest")
    assert complete(**upload(), **{name: expected.partition("-")[0]})[name] == expected


def test_completion_without_a_body(s3: Served, bucket: str) -> None:
    upload = s3.client().create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    head = signed_head(s3, "POST", f"/{bucket}/k?uploadId={upload}", {"Connection": "close"})
    answer = s3.raw(head)
    assert (status_of(answer), code_of(answer)) == (400, "MalformedXML")


def test_transfers_of_boto3(s3: Served, bucket: str) -> None:
    client = s3.client()
    body = bytes(range(256)) * (13 * MIB // 256)
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    client.upload_fileobj(io.BytesIO(body), bucket, "big", Config=config)
    assert client.head_object(Bucket=bucket, Key="big")["ETag"].endswith('-3"')
    into = io.BytesIO()
    client.download_fileobj(bucket, "big", into, Config=config)
    assert into.getvalue() == body
    client.copy({"Bucket": bucket, "Key": "big"}, bucket, "copy", Config=config)
    assert client.get_object(Bucket=bucket, Key="copy")["Body"].read() == body


def test_refusals(s3: Served, bucket: str) -> None:
    client = s3.client()
    upload = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    etag = client.upload_part(**where, PartNumber=1, Body=b"small")["ETag"]
    two = client.upload_part(**where, PartNumber=2, Body=b"small")["ETag"]

    def complete(*parts: tuple[int, str]) -> tuple[int, str]:
        named = [{"PartNumber": number, "ETag": each} for number, each in parts]
        return error_of(client.complete_multipart_upload, **where, MultipartUpload={"Parts": named})

    assert complete((1, etag), (2, two)) == (400, "EntityTooSmall")
    assert complete((2, two), (1, etag)) == (400, "InvalidPartOrder")
    assert complete((3, etag)) == (400, "InvalidPart")
    assert complete() == (400, "MalformedXML")
    assert complete((10_001, etag)) == (400, "InvalidArgument")
    assert error_of(client.upload_part, **where, PartNumber=10_001, Body=b"") == (400, "InvalidArgument")
    none = {**where, "UploadId": "none"}
    assert error_of(client.upload_part, **none, PartNumber=1, Body=b"") == (404, "NoSuchUpload")
    assert error_of(client.list_parts, **none) == (404, "NoSuchUpload")
    client.abort_multipart_upload(**where)
    assert error_of(client.abort_multipart_upload, **where) == (404, "NoSuchUpload")


def test_copied_parts(s3: Served, bucket: str) -> None:
    client = s3.client()
    body = bytes(range(256)) * (6 * MIB // 256)
    client.put_object(Bucket=bucket, Key="source", Body=body)
    upload = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    source = {"Bucket": bucket, "Key": "source"}
    whole = client.upload_part_copy(**where, PartNumber=1, CopySource=source)["CopyPartResult"]
    headers = client.upload_part_copy(**where, PartNumber=1, CopySource=source)
    assert headers["ServerSideEncryption"] == "AES256"
    some = client.upload_part_copy(**where, PartNumber=2, CopySource=source, CopySourceRange="bytes=10-19")[
        "CopyPartResult"
    ]
    assert error_of(
        client.upload_part_copy, **where, PartNumber=3, CopySource=source, CopySourceRange="bytes=0-99999999"
    ) == (416, "InvalidRange")
    parts = [{"PartNumber": 1, "ETag": whole["ETag"]}, {"PartNumber": 2, "ETag": some["ETag"]}]
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == body + body[10:20]


GIB, TIB = 1024**3, 1024**4


def test_an_object_of_5_tib(s3: Served, bucket: str) -> None:
    """S3-04. Of sparse parts: of each, 20 KiB are there, and the rows say 5 GiB, the most that a part has."""
    client, store = s3.client(), s3.store
    start = bytes(range(250)) * 80
    client.put_object(Bucket=bucket, Key="start", Body=start)
    bucket_id = store.bucket(bucket).id
    upload = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}

    async def copy_parts() -> list[dict[str, Any]]:
        source = Source(bucket_id, "start")
        made = [await store.copy_part(source, bucket_id, "k", upload, number) for number in range(1, 1026)]
        return [{"PartNumber": each.number, "ETag": each.etag} for each in made]

    parts = s3.call(copy_parts())

    def stretch(tx: Transaction) -> None:
        """Let the first 1,024 have 5 GiB each, which is 5 TiB together."""
        chosen = (
            "SELECT part.content FROM part JOIN upload ON upload.number = part.upload WHERE upload.id = ?"
        )
        for table, column in (("part", "content"), ("piece", "content"), ("content", "id")):
            of_upload = f"UPDATE {table} SET size = ? WHERE {column} IN ({chosen})"
            tx.connection.execute(of_upload, (5 * GIB, upload))
        tx.connection.execute("UPDATE part SET size = 1 WHERE number = 1025")

    s3.call(store.engine.database.write(stretch))
    refused = error_of(client.complete_multipart_upload, **where, MultipartUpload={"Parts": parts})
    assert refused == (400, "EntityTooLarge")
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts[:-1]})
    assert client.head_object(Bucket=bucket, Key="k")["ContentLength"] == 5 * TIB == 5_497_558_138_880
    listed = client.list_objects_v2(Bucket=bucket, Prefix="k")["Contents"]
    assert listed[0]["Size"] == 5 * TIB
    for first in (0, 5 * GIB, 820 * 5 * GIB + 100, 1023 * 5 * GIB + 249):
        found = client.get_object(Bucket=bucket, Key="k", Range=f"bytes={first}-{first + 9}")
        offset = first % (5 * GIB)
        assert found["Body"].read() == start[offset : offset + 10]
        assert found["ContentRange"] == f"bytes {first}-{first + 9}/{5 * TIB}"
    assert error_of(client.get_object, Bucket=bucket, Key="k", Range=f"bytes={5 * TIB}-")[0] == 416
    assert client.head_object(Bucket=bucket, Key="k", PartNumber=1024)["ContentLength"] == 5 * GIB
