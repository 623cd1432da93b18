"""Rights of callers: roles, policies of buckets, other tenants, links, and keys that are no longer valid."""

from typing import Any

import boto3
import httpx
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from neocloud.messages.neocloud.storage.v1 import PolicyRule

from neocloud.data_plane.addresses import is_private
from neocloud.object_gateway.s3.handlers import HANDLERS
from neocloud.object_gateway.s3.operations import TABLE
from neocloud.object_gateway.s3.operations import Scope as PolicyScope
from neocloud.testing.object_control_plane import PERMISSIONS
from tests.fast.object_gateway.s3.served import REGION, Served, error_of
from tests.fast.object_store.stores import read

READ = ("storage.objects.get", "storage.objects.list")


def anonymous(s3: Served) -> Any:
    config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, retries={"max_attempts": 0})
    return boto3.client("s3", endpoint_url=s3.url, region_name=REGION, config=config)


def test_every_operation_has_a_right_and_a_function() -> None:
    for operation in TABLE:
        assert operation.name in HANDLERS or operation.name.startswith("GetBucket"), operation
        assert (operation.permission == "") == (operation.scope is PolicyScope.OWN), operation
        assert operation.permission in {*PERMISSIONS, ""}, operation
    own = {each.name for each in TABLE if each.scope is PolicyScope.OWN}
    assert own == {"ListBuckets", "CreateBucket", "DeleteObjects", "PostObject"}, "these check in themselves"


def test_nobody_may_do_anything(s3: Served, bucket: str) -> None:
    s3.client().put_object(Bucket=bucket, Key="k", Body=b"x")
    for client in (
        anonymous(s3),
        s3.client(s3.account(project_id="other")),
        s3.client(s3.account(permissions=frozenset())),
    ):
        refusals = [
            error_of(client.list_buckets)
            if client.meta.config.signature_version is UNSIGNED
            else (403, "AccessDenied"),
            error_of(client.create_bucket, Bucket=bucket + "x")
            if client.meta.config.signature_version is UNSIGNED
            else (403, "AccessDenied"),
            error_of(client.get_object, Bucket=bucket, Key="k"),
            error_of(client.get_object, Bucket=bucket, Key="none"),
            error_of(client.put_object, Bucket=bucket, Key="k", Body=b""),
            error_of(client.delete_object, Bucket=bucket, Key="k"),
            error_of(client.delete_objects, Bucket=bucket, Delete={"Objects": [{"Key": "k"}]}),
            error_of(client.list_objects_v2, Bucket=bucket),
            error_of(client.list_object_versions, Bucket=bucket),
            error_of(client.get_bucket_versioning, Bucket=bucket),
            error_of(
                client.put_bucket_versioning, Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
            ),
            error_of(client.delete_bucket, Bucket=bucket),
            error_of(client.create_multipart_upload, Bucket=bucket, Key="k"),
            error_of(client.put_object_tagging, Bucket=bucket, Key="k", Tagging={"TagSet": []}),
        ]
        assert set(refusals) == {(403, "AccessDenied")}
        assert error_of(client.head_bucket, Bucket=bucket)[0] == 403
    assert s3.client().get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_a_copy_needs_the_right_on_its_source(s3: Served, bucket: str) -> None:
    outsider = s3.account(project_id="copier")
    own = s3.make_bucket(outsider)
    s3.client().put_object(Bucket=bucket, Key="secret", Body=b"x")
    client, source = s3.client(outsider), {"Bucket": bucket, "Key": "secret"}
    assert error_of(client.copy_object, Bucket=own, Key="k", CopySource=source) == (403, "AccessDenied")
    upload = client.create_multipart_upload(Bucket=own, Key="k")["UploadId"]
    where = {"Bucket": own, "Key": "k", "UploadId": upload, "PartNumber": 1}
    assert error_of(client.upload_part_copy, **where, CopySource=source) == (403, "AccessDenied")


def test_policy_for_a_group(s3: Served, bucket: str) -> None:
    member = s3.account(permissions=frozenset(), groups=frozenset(["group-a"]))
    owner, client = s3.client(), s3.client(member)
    for key in ("in/a", "in/b", "out"):
        owner.put_object(Bucket=bucket, Key=key, Body=b"x")
    permissions = (*READ, "storage.objects.create")
    s3.call(
        s3.control_plane.set_policy(
            bucket, [PolicyRule(paths=["in/*"], permissions=permissions, group_id="group-a")]
        )
    )
    assert client.get_object(Bucket=bucket, Key="in/a")["Body"].read() == b"x"
    client.put_object(Bucket=bucket, Key="in/new", Body=b"x")
    assert client.list_objects_v2(Bucket=bucket, Prefix="in/")["KeyCount"] == 3
    assert error_of(client.get_object, Bucket=bucket, Key="out") == (403, "AccessDenied")
    assert error_of(client.put_object, Bucket=bucket, Key="out", Body=b"") == (403, "AccessDenied")
    assert error_of(client.delete_object, Bucket=bucket, Key="in/a") == (403, "AccessDenied")
    for prefix in ("", "i", "in", "ou"):
        assert error_of(client.list_objects_v2, Bucket=bucket, Prefix=prefix) == (403, "AccessDenied")
    assert error_of(client.get_bucket_versioning, Bucket=bucket) == (403, "AccessDenied")
    s3.call(s3.control_plane.set_policy(bucket, []))
    assert error_of(client.get_object, Bucket=bucket, Key="in/a") == (403, "AccessDenied")


def test_anonymous_reads(s3: Served, bucket: str) -> None:
    owner, client = s3.client(), anonymous(s3)
    owner.put_object(Bucket=bucket, Key="public/a", Body=b"x")
    owner.put_object(Bucket=bucket, Key="private", Body=b"x")
    assert owner.get_bucket_policy_status(Bucket=bucket)["PolicyStatus"]["IsPublic"] is False
    s3.call(s3.control_plane.set_policy(bucket, [PolicyRule(paths=["public/*"], permissions=READ)]))
    assert client.get_object(Bucket=bucket, Key="public/a")["Body"].read() == b"x"
    assert error_of(client.get_object, Bucket=bucket, Key="private") == (403, "AccessDenied")
    assert error_of(client.put_object, Bucket=bucket, Key="public/a", Body=b"") == (403, "AccessDenied")
    assert error_of(client.get_object, Bucket=bucket, Key="public/a", ResponseContentType="text/html") == (
        400,
        "InvalidRequest",
    )
    assert owner.get_bucket_policy_status(Bucket=bucket)["PolicyStatus"]["IsPublic"] is True
    grants = owner.get_object_acl(Bucket=bucket, Key="public/a")["Grants"]
    assert [each["Permission"] for each in grants] == ["FULL_CONTROL", "READ"]
    assert len(owner.get_object_acl(Bucket=bucket, Key="private")["Grants"]) == 1


def test_presigned_links(s3: Served, bucket: str) -> None:
    client = s3.client()
    where = {"Bucket": bucket, "Key": "a b"}
    put = client.generate_presigned_url("put_object", where, ExpiresIn=60)
    assert httpx.put(put, content=b"by link").status_code == 200
    get = client.generate_presigned_url("get_object", where, ExpiresIn=60)
    assert httpx.get(get).content == b"by link"
    assert httpx.get(get, headers={"Range": "bytes=0-1"}).content == b"by"
    assert httpx.put(get, content=b"x").status_code == 403
    assert httpx.get(get.replace("a%20b", "other")).status_code == 403
    assert httpx.get(get.replace("X-Amz-Expires=60", "X-Amz-Expires=6000")).status_code == 403
    source = {"x-amz-copy-source": f"/{bucket}/a%20b"}
    refused = httpx.put(put, headers=source)
    assert refused.status_code == 403 and "HeadersNotSigned" in refused.text
    assert httpx.put(put, headers={"x-amz-acl": "private"}, content=b"x").status_code == 403


def test_wrong_secrets_and_unknown_keys(s3: Served, bucket: str) -> None:
    account = s3.account()
    wrong = type(account)(account.aws_access_key_id, "wrong")
    assert error_of(s3.client(wrong).list_buckets) == (403, "SignatureDoesNotMatch")
    unknown = type(account)("NCAKUNKNOWN00000", "x")
    before = s3.control_plane.signs
    for _ in range(5):
        assert error_of(s3.client(unknown).list_buckets) == (403, "InvalidAccessKeyId")
    assert s3.control_plane.signs - before == 1, "an unknown key is looked up once"


def test_a_key_that_is_removed(s3: Served) -> None:
    account = s3.account()
    client = s3.client(account)
    client.list_buckets()
    del s3.control_plane.accounts[account.aws_access_key_id]
    s3.loop.call_soon_threadsafe(s3.control_plane.access_changed)
    for _ in range(100):
        try:
            client.list_buckets()
        except client.exceptions.ClientError as error:
            assert error.response.get("Error", {}).get("Code") == "InvalidAccessKeyId"
            return
    pytest.fail("The key was still accepted.")


def test_what_is_known_is_served_while_the_control_plane_is_away(s3: Served, bucket: str) -> None:
    client, outsider = s3.client(), s3.client(s3.account())
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    s3.control_plane.is_away = True
    try:
        assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
        assert error_of(outsider.get_object, Bucket=bucket, Key="k") == (503, "ServiceUnavailable")
        assert error_of(client.delete_bucket, Bucket=bucket)[0] in (409, 503)
    finally:
        s3.control_plane.is_away = False


def test_audit(s3: Served, bucket: str) -> None:
    client = s3.client()
    s3.audited.clear()
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert not s3.audited
    s3.call(s3.control_plane.change(bucket, lambda found: setattr(found.spec, "object_audit_logging", 2)))
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    client.get_object(Bucket=bucket, Key="k")
    error_of(anonymous(s3).delete_object, Bucket=bucket, Key="k")
    assert [(each.operation, each.status, each.error) for each in s3.audited] == [
        ("PutObject", 200, ""),
        ("DeleteObject", 403, "AccessDenied"),
    ]
    assert s3.audited[0].subject_id == s3.owner.subject_id and s3.audited[1].subject_id == ""


def test_bytes_to_this_machine_are_counted_apart(s3: Served, bucket: str) -> None:
    s3.client().put_object(Bucket=bucket, Key="k", Body=b"x" * 1000)
    s3.client().get_object(Bucket=bucket, Key="k")["Body"].read()
    s3.call(s3.store.flush())
    counted = read(
        s3.home / "objects",
        "SELECT sku, sum(count) FROM counted_hour JOIN bucket ON bucket.number = counted_hour.bucket"
        " WHERE name = ? AND sku LIKE 'egress%' GROUP BY sku",
        bucket,
    )
    assert counted == [("egress-private", 1000)]
    found = [
        is_private(address) for address in ("127.0.0.1", "10.1.2.3", "::1", "::ffff:10.0.0.1", "fd00::1")
    ]
    assert all(found) and not any(is_private(address) for address in ("8.8.8.8", "2600::1", "", "x"))
