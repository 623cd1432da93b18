"""Content and form of inventories, read back by boto3."""

import re
from typing import Any

import pytest

from neocloud.object_gateway.work.inventories import parquet, run
from neocloud.object_store.metadata.transaction import Transaction
from tests.fast.object_gateway.s3.served import Served
from tests.fast.object_gateway.work.inventories.cloud import Inventories

HOSTILE = (
    '"; DROP TABLE x',
    "a,b",
    "line\nbreak\r\nand\ttab",
    "=HYPERLINK(A1)",
    "+1",
    "@SUM(A1)",
    "plus+ and space",
    "100%25",
    "ключ/наш",
    "../../etc/passwd",
    "a\\b'c",
)


def test_it_lists_all_objects_with_their_properties(inventories: Inventories) -> None:
    put = inventories.put("a/first", b"hello")
    inventories.put("b", b"", StorageClass="STANDARD")
    written = inventories.written()
    bucket = inventories.source
    assert written.manifest["sourceBucket"] == bucket
    assert written.manifest["destinationBucket"] == f"arn:aws:s3:::{inventories.destination}"
    assert (written.manifest["fileFormat"], written.manifest["version"]) == ("CSV", "2016-11-30")
    assert written.columns == ["Bucket", "Key", "Size", "LastModifiedDate", "ETag", "StorageClass"]
    pattern = rf"reports/{bucket}/storagebucketinventory-\w+/\d{{4}}-\d\d-\d\dT\d\d-\d\dZ/manifest.json"
    assert re.fullmatch(pattern, written.key)
    first, second = written.lines
    assert (first["Bucket"], first["Key"], first["Size"]) == (bucket, "a/first", "5")
    assert (first["ETag"], first["StorageClass"]) == (put["ETag"].strip('"'), "STANDARD")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["LastModifiedDate"])
    assert (second["Key"], second["Size"]) == ("b", "0")


def test_hostile_keys_are_one_field_each(inventories: Inventories) -> None:
    for key in HOSTILE:
        inventories.put(key, Tagging="a=%2C%22%0A" if key == "a,b" else "")
    written = inventories.written(optional_fields=["TAGS"])
    assert written.names == sorted(HOSTILE, key=str.encode)
    assert written.text.count("\n") == len(HOSTILE)
    for line in written.text.splitlines():
        fields = re.fullmatch(r'"([^"]*)"(?:,"([^"]*)")*', line)
        assert fields and not re.search(r'"[=+@\t]', line)


def test_only_the_prefix_is_listed(inventories: Inventories) -> None:
    for key in ("in", "in/", "in/a", "in/ÿ", "in0", "out"):
        inventories.put(key)
    assert inventories.written(source_prefix="in/").names == ["in/", "in/a", "in/ÿ"]


def test_versions_and_delete_markers_where_they_are_asked_for(
    inventories: Inventories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PAGE", 2)
    monkeypatch.setattr(run, "ROWS_PER_FILE", 3)
    s3 = inventories.served.client()
    inventories.put("before")
    s3.put_bucket_versioning(Bucket=inventories.source, VersioningConfiguration={"Status": "Enabled"})
    ids = [inventories.put("many", str(number).encode())["VersionId"] for number in range(6)]
    inventories.put("gone")
    marker = s3.delete_object(Bucket=inventories.source, Key="gone")["VersionId"]
    assert inventories.written().names == ["before", "many"]
    written = inventories.written(noncurrent_versions=True)
    listed = [(each["Key"], each["VersionId"], each["IsLatest"]) for each in written.lines]
    assert listed[0] == ("before", "null", "true")
    assert [each[1] for each in listed if each[0] == "many"] == ids[::-1]
    assert [each[2] for each in listed] == ["true", "true", "false", "true"] + ["false"] * 5
    gone = written.lines[1]
    assert (gone["VersionId"], gone["IsDeleteMarker"]) == (marker, "true")
    assert (gone["Size"], gone["ETag"], gone["StorageClass"]) == ("", "", "")
    assert len(written.manifest["files"]) == 3


def test_optional_fields(inventories: Inventories, served: Served) -> None:
    s3 = served.client()
    rule: Any = {
        "ID": "old",
        "Status": "Enabled",
        "Filter": {"Prefix": "tmp/"},
        "Expiration": {"Days": 30},
    }
    s3.put_bucket_lifecycle_configuration(Bucket=inventories.source, LifecycleConfiguration={"Rules": [rule]})
    inventories.put("tmp/a", Tagging="team=a%20b&x=1", ChecksumAlgorithm="SHA256")
    upload = s3.create_multipart_upload(Bucket=inventories.source, Key="whole")["UploadId"]
    given = {"Bucket": inventories.source, "Key": "whole", "UploadId": upload}
    part = s3.upload_part(**given, PartNumber=1, Body=b"part")
    parts: Any = [{"ETag": part["ETag"], "PartNumber": 1}]
    s3.complete_multipart_upload(**given, MultipartUpload={"Parts": parts})
    names = ["TAGS", "IS_MULTIPART_UPLOAD", "LIFECYCLE_EXPIRATION", "CHECKSUM_ALGORITHMS"]
    tagged, whole = inventories.written(optional_fields=names).lines
    assert (tagged["Tags"], tagged["IsMultipartUploaded"], tagged["ChecksumAlgorithm"]) == (
        "team=a+b&x=1",
        "false",
        "SHA256",
    )
    assert tagged["LifecycleExpirationDate"].endswith("T00:00:00.000Z")
    assert (whole["Tags"], whole["IsMultipartUploaded"], whole["LifecycleExpirationDate"]) == (
        "",
        "true",
        "",
    )


def test_last_accesses_and_tiers(inventories: Inventories, served: Served) -> None:
    for key, storage_class in (("cold", "INTELLIGENT"), ("read", "INTELLIGENT"), ("standard", "STANDARD")):
        inventories.put(key, StorageClass=storage_class)

    def make_old(tx: Transaction) -> None:
        tx.connection.execute("UPDATE version SET modified_ms = modified_ms - 31 * 86400000")

    served.call(served.store.engine.database.write(make_old))
    served.client().get_object(Bucket=inventories.source, Key="read")["Body"].read()
    served.call(served.store.flush())
    cold, read, standard = inventories.written(optional_fields=["LAST_ACCESS", "INTELLIGENT_TIER"]).lines
    names = ("LastAccessDate", "IntelligentTieringAccessTier")
    assert [cold[name] for name in names] == ["", "INFREQUENT"]
    assert [standard[name] for name in names] == ["", ""]
    assert read["LastAccessDate"] > read["LastModifiedDate"]
    assert read["IntelligentTieringAccessTier"] == "FREQUENT"


def test_an_empty_bucket_has_a_report_without_files(inventories: Inventories) -> None:
    written = inventories.written(destination_prefix="")
    assert written.manifest["files"] == [] and written.key.startswith(f"{inventories.source}/")


def test_a_bucket_may_hold_its_own_report(inventories: Inventories) -> None:
    inventories.put("a")
    inventories.destination = inventories.source
    assert inventories.written().names == ["a"]


def test_many_objects_in_several_files_each_once(
    inventories: Inventories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PAGE", 7)
    monkeypatch.setattr(run, "ROWS_PER_FILE", 20)
    keys = [f"key-{number:03d}" for number in range(60)]
    for key in keys:
        inventories.put(key, b"")
    written = inventories.written()
    assert written.names == keys and len(written.manifest["files"]) == 3


def test_parquet_has_the_same_lines_with_types(
    inventories: Inventories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PAGE", 3)
    monkeypatch.setattr(run, "ROWS_PER_FILE", 8)
    monkeypatch.setattr(parquet, "ROW_GROUP", 4)
    for key in HOSTILE:
        inventories.put(key, b"hello", Tagging="a=1")
    fields = ["CHECKSUM_ALGORITHMS", "IS_MULTIPART_UPLOAD", "LIFECYCLE_EXPIRATION", "TAGS"]
    spec = {"optional_fields": fields, "noncurrent_versions": True}
    text = inventories.written(**spec)
    written = inventories.written(**spec, output_format="PARQUET_SNAPPY")
    assert written.manifest["fileFormat"] == "Parquet" and len(written.tables) == 2
    schema = written.manifest["fileSchema"]
    assert schema.startswith(
        "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); "
        "optional binary version_id (UTF8); optional boolean is_latest; optional boolean is_delete_marker; "
        "optional int64 size; optional int64 last_modified_date (TIMESTAMP_MILLIS); "
        "optional binary e_tag (UTF8);"
    )
    found = [line for table in written.tables for line in table.to_pylist()]
    assert [each["key"] for each in found] == text.names
    for typed, plain in zip(found, text.lines, strict=True):
        shown = f"{typed['last_modified_date']:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
        assert (typed["size"], shown, typed["e_tag"]) == (5, plain["LastModifiedDate"], plain["ETag"])
        assert (typed["is_latest"], typed["is_delete_marker"]) == (True, False)
        assert (typed["is_multipart_uploaded"], typed["lifecycle_expiration_date"]) == (False, None)
        assert (typed["checksum_algorithm"], typed["tags"]) == (plain["ChecksumAlgorithm"], "a=1")
