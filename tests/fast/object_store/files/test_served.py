"""A filesystem bucket through the S3 front, with boto3: what clients put are files, and files are objects."""

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from tests.fast.object_gateway.s3.served import Served, error_of, serving
from tests.fast.object_store.stores import read

MIB = 1024**2


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("objects")) as served:
        yield served


@dataclass
class View:
    """A filesystem bucket, its client and its folder."""

    s3: Served
    name: str
    client: Any
    folder: Path

    def put(self, key: str, body: bytes = b"x", **given: Any) -> Any:
        return self.client.put_object(Bucket=self.name, Key=key, Body=body, **given)

    def get(self, key: str, **given: Any) -> bytes:
        return self.client.get_object(Bucket=self.name, Key=key, **given)["Body"].read()

    def head(self, key: str, **given: Any) -> Any:
        return self.client.head_object(Bucket=self.name, Key=key, **given)

    def error(self, call: str, **given: Any) -> tuple[int, str]:
        return error_of(getattr(self.client, call), Bucket=self.name, **given)

    def pages(self, **given: Any) -> Iterator[tuple[list[str], list[str]]]:
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, **given):
            prefixes = [each["Prefix"] for each in page.get("CommonPrefixes", ())]
            yield [each["Key"] for each in page.get("Contents", ())], prefixes

    def listed(self, **given: Any) -> list[str]:
        return [key for keys, _ in self.pages(**given) for key in keys]


def make_view(s3: Served, folder: Path, **spec: Any) -> View:
    name = s3.make_bucket()

    def change(bucket: Any) -> None:
        bucket.filesystem_folder = str(folder)
        bucket.spec.filesystem_bucket.filesystem_id = "computefilesystem-e00test"
        for field, value in spec.items():
            setattr(bucket.spec.filesystem_bucket, field, value)

    s3.call(s3.control_plane.change(name, change))
    return View(s3, name, s3.client(), folder)


@pytest.fixture
def view(s3: Served, tmp_path: Path) -> View:
    return make_view(s3, tmp_path)


def test_what_is_put_is_a_file_and_a_file_is_an_object(view: View) -> None:
    body = os.urandom(3 * MIB + 5)
    etag = view.put("a/b/c.bin", body, Metadata={"who": "me"}, ContentType="text/plain")["ETag"]
    assert etag == f'"{hashlib.md5(body).hexdigest()}"'
    assert (view.folder / "a/b/c.bin").read_bytes() == body
    assert oct((view.folder / "a/b/c.bin").stat().st_mode) == "0o100644"
    assert oct((view.folder / "a/b").stat().st_mode) == "0o40755"
    head = view.head("a/b/c.bin")
    assert (head["ETag"], head["ContentLength"]) == (etag, len(body))
    assert (head["Metadata"], head["ContentType"]) == ({"who": "me"}, "text/plain")
    assert head["StorageClass"] == "FILESYSTEM"
    assert view.get("a/b/c.bin") == body
    assert view.get("a/b/c.bin", Range="bytes=1048570-1048580") == body[1048570:1048581]
    (view.folder / "of-a-program").write_bytes(b"written")
    assert view.get("of-a-program") == b"written"
    assert view.head("of-a-program")["ETag"].endswith('-1"'), "nobody claims that it is an MD5"
    assert view.listed() == ["a/b/c.bin", "of-a-program"]
    assert view.error("put_object", Key="a/b/c.bin", Body=b"", IfNoneMatch="*") == (412, "PreconditionFailed")
    view.client.delete_object(Bucket=view.name, Key="a/b/c.bin")
    assert os.listdir(view.folder) == ["of-a-program"], "folders that became empty went with it"
    assert view.error("get_object", Key="a/b/c.bin") == (404, "NoSuchKey")


def test_a_file_that_a_program_changed_has_another_etag_and_keeps_no_metadata(view: View) -> None:
    first = view.put("file", b"one", Metadata={"of": "one"})["ETag"]
    (view.folder / "file").write_bytes(b"two")
    head = view.head("file")
    assert head["ETag"] != first and head["ETag"].endswith('-1"') and head["Metadata"] == {}
    assert view.error("put_object", Key="file", Body=b"", IfMatch=first) == (412, "PreconditionFailed")
    assert view.put("file", b"three", IfMatch=head["ETag"])


def test_a_body_that_is_not_what_was_declared_leaves_nothing(view: View) -> None:
    assert view.error("put_object", Key="a/file", Body=b"x", ChecksumSHA256="A" * 43 + "=")[0] == 400
    assert view.error("put_object", Key="a/file", Body=b"x", ContentMD5="A" * 22 + "==")[0] == 400
    assert view.error("put_object", Key="new/file", Body=b"x", IfMatch='"0"') == (404, "NoSuchKey")
    assert os.listdir(view.folder) == []


def test_keys_are_in_the_order_of_bytes_over_pages_and_delimiters(view: View) -> None:
    keys = sorted(["a!", "a.txt", "a/1", "a/2/x", "a/2/y", "a0", "b/c/d", "é/ü", "z"], key=str.encode)
    for key in keys:
        view.put(key)
    assert view.listed() == keys
    for size in (1, 2, 3):
        assert view.listed(PaginationConfig={"PageSize": size}) == keys
    assert view.listed(Prefix="a") == [key for key in keys if key.startswith("a")]
    assert view.listed(Prefix="a/2/") == ["a/2/x", "a/2/y"]
    assert view.listed(StartAfter="a/2/x") == keys[keys.index("a/2/x") + 1 :]
    found = list(view.pages(Delimiter="/", PaginationConfig={"PageSize": 2}))
    assert [key for page, _ in found for key in page] == ["a!", "a.txt", "a0", "z"]
    assert [prefix for _, page in found for prefix in page] == ["a/", "b/", "é/"]
    assert list(view.pages(Prefix="a/", Delimiter="/")) == [(["a/1"], ["a/2/"])]
    by_other = list(view.pages(Delimiter="2", PaginationConfig={"PageSize": 1}))
    assert [prefix for _, page in by_other for prefix in page] == ["a/2"]
    first = view.client.list_objects(Bucket=view.name, MaxKeys=4)
    assert [each["Key"] for each in first["Contents"]] == keys[:4] and first["IsTruncated"]
    versions = view.client.list_object_versions(Bucket=view.name, Prefix="a/")["Versions"]
    assert [(each["Key"], each["VersionId"]) for each in versions] == [
        (key, "null") for key in keys if key.startswith("a/")
    ]


def test_directories_are_keys_where_they_are_empty_or_were_put(view: View) -> None:
    view.put("dir/", b"")
    (view.folder / "empty").mkdir()
    assert view.listed() == ["dir/", "empty/"]
    view.put("dir/file")
    view.put("plain/file")
    assert view.listed() == ["dir/", "dir/file", "empty/", "plain/file"]
    assert view.error("head_object", Key="plain/")[0] == 404
    view.client.delete_object(Bucket=view.name, Key="dir/file")
    assert view.head("dir/")["ContentLength"] == 0 and view.get("dir/") == b""
    assert view.listed(Prefix="dir//") == [] and view.listed(Prefix="/") == []
    assert view.error("put_object", Key="dir/", Body=b"content") == (400, "InvalidRequest")
    assert view.error("put_object", Key="plain/file/below", Body=b"x") == (400, "InvalidRequest")
    assert view.error("put_object", Key="plain", Body=b"x") == (400, "InvalidRequest")
    given = {"Objects": [{"Key": key} for key in view.listed()]}
    assert "Errors" not in view.client.delete_objects(Bucket=view.name, Delete=given)
    assert os.listdir(view.folder) == []


def test_multipart_uploads_and_copies(view: View) -> None:
    body = os.urandom(17 * MIB)
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    view.client.upload_fileobj(io.BytesIO(body), view.name, "big", Config=config)
    assert (view.folder / "big").read_bytes() == body
    assert view.head("big")["ETag"].endswith('-4"')
    view.client.copy({"Bucket": view.name, "Key": "big"}, view.name, "copies/big", Config=config)
    assert (view.folder / "copies/big").read_bytes() == body
    other = view.s3.make_bucket()
    view.client.copy_object(Bucket=other, Key="out", CopySource=f"{view.name}/big")
    view.client.copy_object(Bucket=view.name, Key="back", CopySource=f"{other}/out")
    assert (view.folder / "back").read_bytes() == body
    upload = view.client.create_multipart_upload(Bucket=view.name, Key="open")["UploadId"]
    given = {"Bucket": view.name, "Key": "open", "UploadId": upload}
    part = view.client.upload_part(**given, PartNumber=1, Body=b"part")
    assert view.listed() == ["back", "big", "copies/big"]
    assert sorted(os.listdir(view.folder)) == ["back", "big", "copies"], "parts are out of sight"
    done = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    first = view.client.complete_multipart_upload(**given, MultipartUpload=done)
    again = view.client.complete_multipart_upload(**given, MultipartUpload=done)
    assert first["ETag"] == again["ETag"] and view.get("open") == b"part"
    assert "Uploads" not in view.client.list_multipart_uploads(Bucket=view.name)


def test_what_files_cannot_have_is_refused(view: View) -> None:
    view.put("file")
    tagging = {"TagSet": [{"Key": "a", "Value": "b"}]}
    assert view.error("put_object_tagging", Key="file", Tagging=tagging) == (400, "InvalidRequest")
    assert view.error("put_object", Key="other", Body=b"", Tagging="a=b") == (400, "InvalidRequest")
    assert view.error("get_object", Key="file", VersionId="0" * 32) == (404, "NoSuchVersion")
    assert (
        view.error("put_object", Key="other", Body=b"", StorageClass="FILESYSTEM")[1] == "InvalidStorageClass"
    )
    long = {"long": "x" * 2000}
    assert view.put("other", Metadata=long) and view.head("other")["Metadata"] == long


def test_requests_and_egress_are_counted_and_no_bytes_are_held(view: View) -> None:
    view.put("k", b"0123456789")
    view.get("k")
    view.head("k")
    view.listed()
    view.client.create_multipart_upload(Bucket=view.name, Key="open")
    view.client.delete_object(Bucket=view.name, Key="k")
    bucket = view.s3.store.bucket(view.name)
    view.s3.call(view.s3.store.flush())
    found = dict(
        read(
            view.s3.home / "objects",
            "SELECT sku, sum(count) FROM counted_hour JOIN bucket ON bucket.number = counted_hour.bucket"
            " WHERE bucket.name = ? GROUP BY sku",
            view.name,
        )
    )
    egress = found.pop("egress-private")
    assert egress > 10, "of the object, the list and the upload"
    assert found == {
        "requests.modify": 2,
        "requests.read": 2,
        "requests.list": 1,
        "requests.delete": 1,
    }
    (held,) = view.s3.store.counters(bucket.id)
    assert (held.uploads, held.bytes, held.simple_objects) == (1, 0, 0)
