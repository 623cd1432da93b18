"""Access control lists, which are disabled; ownership controls and public access blocks of buckets."""

from typing import Any

import httpx
import pytest
from neocloud.messages.neocloud.storage.v1 import PolicyRule

from neocloud.testing.object_control_plane import Account
from tests.fast.object_gateway.s3.served import Served, error_of

NOT_SUPPORTED = (400, "AccessControlListNotSupported")
NONE = {
    "BlockPublicAcls": False,
    "IgnorePublicAcls": False,
    "BlockPublicPolicy": False,
    "RestrictPublicBuckets": False,
}


@pytest.mark.parametrize("acl", ["private", "bucket-owner-full-control", "bucket-owner-read"])
def test_lists_that_say_what_is_true_are_taken(s3: Served, bucket: str, acl: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"x", ACL=acl)
    client.put_object_acl(Bucket=bucket, Key="k", ACL=acl)
    client.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "k"}, ACL=acl)
    client.create_multipart_upload(Bucket=bucket, Key="m", ACL=acl)
    grants = client.get_object_acl(Bucket=bucket, Key="k")["Grants"]
    assert [each["Permission"] for each in grants] == ["FULL_CONTROL"]


@pytest.mark.parametrize(
    "acl", ["public-read", "public-read-write", "authenticated-read", "aws-exec-read", "log-delivery-write"]
)
def test_other_lists_are_refused_as_where_lists_are_disabled(s3: Served, bucket: str, acl: str) -> None:
    client, place = s3.client(), {"Bucket": bucket, "Key": "k"}
    client.put_object(**place, Body=b"x")
    source = {"CopySource": {"Bucket": bucket, "Key": "k"}}
    for call, given in (
        (client.put_object, {**place, "Body": b"y"}),
        (client.put_object_acl, place),
        (client.copy_object, {**place, **source, "MetadataDirective": "REPLACE"}),
        (client.create_multipart_upload, place),
        (client.put_bucket_acl, {"Bucket": bucket}),
    ):
        assert error_of(call, **given, ACL=acl) == NOT_SUPPORTED
    assert client.get_object(**place)["Body"].read() == b"x"
    assert error_of(client.create_bucket, Bucket=f"{bucket}-x", ACL=acl) == (
        400,
        "InvalidBucketAclWithObjectOwnership",
    )


def test_grants(s3: Served, bucket: str) -> None:
    """Only that the owner may do everything, which is true anyway."""
    client, place = s3.client(), {"Bucket": bucket, "Key": "k"}
    owner = s3.owner.project_id
    client.put_object(**place, Body=b"x", GrantFullControl=f'id="{owner}"')
    for grant in (
        {"GrantRead": f"id={owner}"},
        {"GrantFullControl": "id=another"},
        {"GrantFullControl": f'id={owner}, uri="http://acs.amazonaws.com/groups/global/AllUsers"'},
        {"GrantFullControl": f"id={owner}", "GrantReadACP": "id=another"},
    ):
        assert error_of(client.put_object, **place, Body=b"y", **grant) == NOT_SUPPORTED
    own = {"Grantee": {"ID": owner, "Type": "CanonicalUser"}, "Permission": "FULL_CONTROL"}
    other = {"Grantee": {"ID": "another", "Type": "CanonicalUser"}, "Permission": "READ"}
    whole = {"Owner": {"ID": owner}, "Grants": [own]}
    client.put_object_acl(**place, AccessControlPolicy=whole)
    refused = error_of(client.put_object_acl, **place, AccessControlPolicy={**whole, "Grants": [own, other]})
    assert refused == NOT_SUPPORTED


def test_ownership_controls(s3: Served, bucket: str) -> None:
    client = s3.client()

    def controls(ownership: str) -> dict[str, Any]:
        return {"Bucket": bucket, "OwnershipControls": {"Rules": [{"ObjectOwnership": ownership}]}}

    def found() -> str:
        answer = client.get_bucket_ownership_controls(Bucket=bucket)
        return answer["OwnershipControls"]["Rules"][0]["ObjectOwnership"]

    assert found() == "BucketOwnerEnforced"
    for _ in range(2):
        client.delete_bucket_ownership_controls(Bucket=bucket)
        missing = (404, "OwnershipControlsNotFoundError")
        assert error_of(client.get_bucket_ownership_controls, Bucket=bucket) == missing
    assert error_of(client.put_object, Bucket=bucket, Key="k", Body=b"", ACL="public-read") == NOT_SUPPORTED
    client.put_bucket_ownership_controls(**controls("BucketOwnerEnforced"))
    assert found() == "BucketOwnerEnforced"
    for other, refused in (
        ("ObjectWriter", (501, "NotImplemented")),
        ("BucketOwnerPreferred", (501, "NotImplemented")),
        ("Nobody", (400, "MalformedXML")),
    ):
        assert error_of(client.put_bucket_ownership_controls, **controls(other)) == refused
    assert error_of(client.create_bucket, Bucket=f"{bucket}-x", ObjectOwnership="ObjectWriter")[0] == 501


def test_a_public_access_block_comes_back_as_it_was_put(s3: Served, bucket: str) -> None:
    client = s3.client()
    missing = (404, "NoSuchPublicAccessBlockConfiguration")
    assert error_of(client.get_public_access_block, Bucket=bucket) == missing
    wanted = dict(NONE)
    for changed in NONE:
        wanted |= {**NONE, changed: True}
        client.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=wanted)
        assert client.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"] == wanted
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert client.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"] == wanted
    for _ in range(2):
        client.delete_public_access_block(Bucket=bucket)
        assert error_of(client.get_public_access_block, Bucket=bucket) == missing
    reader = s3.client(s3.account(permissions=frozenset(("storage.buckets.get",))))
    refused = error_of(reader.put_public_access_block, Bucket=bucket, PublicAccessBlockConfiguration=NONE)
    assert refused == (403, "AccessDenied")


def test_blocked_lists_and_policies_are_denied(s3: Served, bucket: str) -> None:
    client = s3.client()
    everybody = '{"Statement": [{"Effect": "Allow", "Principal": %s, "Action": "s3:*", "Resource": "*"}]}'
    block = {**NONE, "BlockPublicAcls": True, "BlockPublicPolicy": True}
    client.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=block)
    for acl in ("public-read", "public-read-write", "authenticated-read"):
        assert error_of(client.put_object, Bucket=bucket, Key="k", Body=b"", ACL=acl)[0] == 403
        assert error_of(client.put_bucket_acl, Bucket=bucket, ACL=acl)[0] == 403
    client.put_object(Bucket=bucket, Key="k", Body=b"", ACL="private")
    for principal, refused in (
        ('"*"', (403, "AccessDenied")),
        ('{"AWS": "*"}', (403, "AccessDenied")),
        ('{"AWS": ["arn:aws:iam::1:root", "*"]}', (403, "AccessDenied")),
        ('{"AWS": "arn:aws:iam::1:root"}', (501, "NotImplemented")),
    ):
        assert error_of(client.put_bucket_policy, Bucket=bucket, Policy=everybody % principal) == refused
    for text in ("x", "[]", "{}", '{"Statement": [1]}', "[" * 5000):
        assert error_of(client.put_bucket_policy, Bucket=bucket, Policy=text)[1] == "MalformedPolicy"


def test_restricted_buckets_are_open_to_their_tenant_alone(s3: Served, bucket: str) -> None:
    """Also where a rule of the storage API lets anybody in."""
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    rule = PolicyRule(paths=["*"], permissions=["storage.objects.get", "storage.objects.list"])
    s3.call(s3.control_plane.set_policy(bucket, [rule]))
    colleague = s3.client(s3.account(permissions=frozenset()))
    outsider = s3.client(s3.control_plane.add(Account("NCAKOUTSIDER0001", "outsider", "project-b")))
    url = f"{s3.url}/{bucket}/k"

    def who_reads() -> list[bool]:
        found = [httpx.get(url, trust_env=False).status_code == 200]
        for each in (outsider, colleague, client):
            try:
                found.append(each.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x")
            except each.exceptions.ClientError:
                found.append(False)
        return found

    assert who_reads() == [True, True, True, True]
    restricted = {**NONE, "RestrictPublicBuckets": True}
    client.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=restricted)
    assert who_reads() == [False, False, True, True]
    assert len(client.get_object_acl(Bucket=bucket, Key="k")["Grants"]) == 1
    client.delete_public_access_block(Bucket=bucket)
    assert who_reads() == [True, True, True, True]
