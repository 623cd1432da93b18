"""The S3 requests that count as the last access of an object."""

from typing import Any

import pytest
from neocloud.messages.nebius.storage.v1 import StorageClass
from neocloud.messages.neocloud.storage.v1 import GatewayBucket

from neocloud.core.untrusted.xml_elements import MalformedXml, parse
from neocloud.object_gateway.s3.lifecycle_xml import read_lifecycle, write_lifecycle
from neocloud.object_store.lifecycle_rules import Transition
from neocloud.object_store.storage_class import StorageClass as StoreClass
from tests.fast.object_gateway.s3.served import Served, error_of


def is_read(s3: Served, bucket: str, key: str) -> bool:
    store = s3.store

    async def look() -> bool:
        await store.flush()
        return (await store.find_version(store.bucket(bucket).id, key)).accessed_ms is not None

    return s3.call(look())


def set_conditions(s3: Served, bucket: str, *conditions: dict[str, Any]) -> None:
    def change(found: GatewayBucket) -> None:
        del found.spec.last_access.conditions[:]
        for each in conditions:
            found.spec.last_access.conditions.add(**each)

    s3.call(s3.control_plane.change(bucket, change))


def test_each_request_that_reads_counts_and_no_other(s3: Served, bucket: str) -> None:
    client = s3.client()
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")["ETag"]
    upload = client.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
    part: Any = {"Bucket": bucket, "Key": "parts", "UploadId": upload, "PartNumber": 1}

    def fresh() -> dict[str, Any]:
        client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
        return {"Bucket": bucket, "Key": "k"}

    source = {"Bucket": bucket, "Key": "k"}
    reads = [
        lambda k: client.get_object(**k)["Body"].read(),
        lambda k: client.get_object(**k, Range="bytes=2-3")["Body"].read(),
        lambda k: client.head_object(**k),
        lambda k: client.head_object(**k, Range="bytes=2-3"),
        lambda k: client.get_object_tagging(**k),
        lambda k: client.copy_object(Bucket=bucket, Key="copy", CopySource=source),
        lambda k: client.upload_part_copy(**part, CopySource=source),
    ]
    for number, read in enumerate(reads):
        key = fresh()
        assert not is_read(s3, bucket, "k"), number
        read(key)
        assert is_read(s3, bucket, "k"), number
    assert not is_read(s3, bucket, "copy")

    key = fresh()
    assert error_of(client.get_object, **key, IfNoneMatch=etag)[0] == 304
    assert error_of(client.head_object, **key, IfNoneMatch=etag)[0] == 304
    assert error_of(client.get_object, **key, Range="bytes=10-")[0] == 416
    assert error_of(s3.client(s3.account(permissions=frozenset())).get_object, **key)[0] == 403
    client.get_object_attributes(**key, ObjectAttributes=["ETag"])
    client.list_objects_v2(Bucket=bucket)
    client.put_object_tagging(**key, Tagging={"TagSet": []})
    assert not is_read(s3, bucket, "k")


def test_the_filter_of_the_bucket_that_is_read_decides(s3: Served, bucket: str) -> None:
    set_conditions(
        s3, bucket, {"type": "EXCLUDE", "user_agents": ["backup"]}, {"type": "EXCLUDE", "methods": [2, 4]}
    )
    other = s3.make_bucket()
    trainer, backup = s3.client(user_agent="train/1"), s3.client(user_agent="nightly-backup/2")
    trainer.put_object(Bucket=bucket, Key="k", Body=b"1")
    backup.get_object(Bucket=bucket, Key="k")["Body"].read()
    trainer.head_object(Bucket=bucket, Key="k")
    trainer.copy_object(Bucket=other, Key="k", CopySource={"Bucket": bucket, "Key": "k"})
    assert not is_read(s3, bucket, "k")
    trainer.get_object(Bucket=bucket, Key="k")["Body"].read()
    assert is_read(s3, bucket, "k")


@pytest.mark.parametrize("own", [[], [{"type": "INCLUDE"}]], ids=["inherited", "overridden"])
def test_the_filter_of_the_lifecycle_counts_where_the_bucket_has_none(
    s3: Served, bucket: str, own: list[dict[str, Any]]
) -> None:
    def change(found: GatewayBucket) -> None:
        found.spec.lifecycle_configuration.last_access_filter.conditions.add(type="EXCLUDE")

    s3.call(s3.control_plane.change(bucket, change))
    set_conditions(s3, bucket, *own)
    s3.client().put_object(Bucket=bucket, Key="k", Body=b"1")
    s3.client().head_object(Bucket=bucket, Key="k")
    assert is_read(s3, bucket, "k") is bool(own)


def test_a_rule_by_last_access_is_applied_and_goes_through_xml(s3: Served, bucket: str) -> None:
    def change(found: GatewayBucket) -> None:
        rule = found.spec.lifecycle_configuration.rules.add(id="unread", status="ENABLED")
        rule.transition.days_since_last_access = 5
        rule.transition.storage_class = StorageClass.Value("INTELLIGENT")

    s3.call(s3.control_plane.change(bucket, change))
    (applied,) = s3.store.bucket(bucket).lifecycle
    assert applied.transition == Transition(StoreClass.INTELLIGENT, days_since_last_access=5)
    rules = s3.control_plane.named(bucket).spec.lifecycle_configuration.rules
    text = write_lifecycle(rules, ())
    assert b"<DaysSinceLastAccess>5<" in text
    (read,), _ = read_lifecycle(parse(text, "LifecycleConfiguration"))
    assert read.transition == rules[0].transition
    both = text.replace(b"<DaysSince", b"<Days>1</Days><DaysSince")
    with pytest.raises(MalformedXml):
        read_lifecycle(parse(both, "LifecycleConfiguration"))
