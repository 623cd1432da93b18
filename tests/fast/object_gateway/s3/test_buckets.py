"""Buckets and their configuration by unmodified boto3; changes go through the control plane."""

import pytest

from tests.fast.object_gateway.s3.served import REGION, Served, error_of


def test_make_list_and_remove(s3: Served) -> None:
    account = s3.account(project_id="buckets")
    client = s3.client(account)
    names = [s3.make_bucket(account) for _ in range(3)]
    assert [each["Name"] for each in client.list_buckets()["Buckets"]] == sorted(names)
    pages = client.get_paginator("list_buckets").paginate(PaginationConfig={"PageSize": 2})
    assert [len(page["Buckets"]) for page in pages] == [2, 1]
    assert client.get_bucket_location(Bucket=names[0])["LocationConstraint"] == REGION
    client.head_bucket(Bucket=names[0])
    where = {"CreateBucketConfiguration": {"LocationConstraint": REGION}}
    assert error_of(client.create_bucket, Bucket=names[0], **where) == (409, "BucketAlreadyOwnedByYou")
    assert error_of(s3.client().create_bucket, Bucket=names[0], **where) == (409, "BucketAlreadyExists")
    client.create_bucket(Bucket=names[0])  # as in us-east-1, where a bucket without a location is
    assert error_of(client.create_bucket, Bucket=names[0], ObjectLockEnabledForBucket=True) == (
        409,
        "BucketAlreadyOwnedByYou",
    )
    assert error_of(client.create_bucket, Bucket="192.168.0.1") == (400, "InvalidBucketName")
    other = {"CreateBucketConfiguration": {"LocationConstraint": "us-west-2"}}
    assert error_of(client.create_bucket, Bucket="new", **other)[1] == "IllegalLocationConstraintException"
    client.put_object(Bucket=names[0], Key="k", Body=b"")
    assert error_of(client.delete_bucket, Bucket=names[0]) == (409, "BucketNotEmpty")
    client.delete_object(Bucket=names[0], Key="k")
    client.create_multipart_upload(Bucket=names[0], Key="unfinished")
    client.delete_bucket(Bucket=names[0])
    assert error_of(client.head_bucket, Bucket=names[0])[0] == 404
    assert error_of(client.delete_bucket, Bucket=names[0]) == (404, "NoSuchBucket")


def test_cors(s3: Served, bucket: str) -> None:
    client = s3.client()
    assert error_of(client.get_bucket_cors, Bucket=bucket) == (404, "NoSuchCORSConfiguration")
    rule = {
        "AllowedMethods": ["GET", "PUT"],
        "AllowedOrigins": ["https://*.example.com"],
        "AllowedHeaders": ["x-amz-*"],
        "ExposeHeaders": ["etag"],
        "MaxAgeSeconds": 60,
    }
    client.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [rule]})
    assert client.get_bucket_cors(Bucket=bucket)["CORSRules"] == [rule]

    def preflight(origin: str, method: str, headers: str = "") -> bytes:
        lines = [f"OPTIONS /{bucket}/k HTTP/1.1", "Host: x", f"Origin: {origin}", "Connection: close"]
        lines += [f"Access-Control-Request-Method: {method}"]
        lines += [f"Access-Control-Request-Headers: {headers}"] if headers else []
        return s3.raw(("\r\n".join(lines) + "\r\n\r\n").encode())

    allowed = preflight("https://a.example.com", "PUT", "X-Amz-Meta-A")
    assert b"200 OK" in allowed and b"Access-Control-Allow-Origin: https://a.example.com" in _titled(allowed)
    for refused in (
        preflight("https://example.org", "PUT"),
        preflight("https://a.example.com", "DELETE"),
        preflight("https://a.example.com", "PUT", "authorization"),
    ):
        assert b"403 " in refused and b"AccessForbidden" in refused
    client.delete_bucket_cors(Bucket=bucket)
    assert b"403 " in preflight("https://a.example.com", "PUT")


def _titled(answer: bytes) -> bytes:
    return b"\r\n".join(
        b": ".join([name.title(), value])
        for name, _, value in (line.partition(b": ") for line in answer.split(b"\r\n"))
    )


def test_lifecycle(s3: Served, bucket: str) -> None:
    client = s3.client()
    assert error_of(client.get_bucket_lifecycle_configuration, Bucket=bucket)[1] == (
        "NoSuchLifecycleConfiguration"
    )
    rules = [
        {
            "ID": "one",
            "Status": "Enabled",
            "Filter": {"And": {"Prefix": "a/", "Tags": [{"Key": "k", "Value": "v"}]}},
            "Expiration": {"Days": 30},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 3, "NewerNoncurrentVersions": 2},
        },
        {
            "ID": "two",
            "Status": "Disabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
            "Transitions": [{"Days": 10, "StorageClass": "INTELLIGENT"}],
        },
    ]
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    assert client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == rules
    applied = s3.store.bucket(bucket).lifecycle
    assert [(each.id, each.is_enabled, each.expire_days) for each in applied] == [
        ("one", True, 30),
        ("two", False, None),
    ]
    bad = [{**rules[0], "Expiration": {"Days": 0}}]
    assert error_of(
        client.put_bucket_lifecycle_configuration, Bucket=bucket, LifecycleConfiguration={"Rules": bad}
    ) == (400, "InvalidArgument")
    client.delete_bucket_lifecycle(Bucket=bucket)
    assert not s3.store.bucket(bucket).lifecycle


def test_tags_of_buckets(s3: Served, bucket: str) -> None:
    client = s3.client()
    assert error_of(client.get_bucket_tagging, Bucket=bucket) == (404, "NoSuchTagSet")
    tags = [{"Key": "team", "Value": "a"}]
    client.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
    assert client.get_bucket_tagging(Bucket=bucket)["TagSet"] == tags
    client.delete_bucket_tagging(Bucket=bucket)
    assert error_of(client.get_bucket_tagging, Bucket=bucket) == (404, "NoSuchTagSet")


def test_tags_are_read_back_at_once(s3: Served, bucket: str) -> None:
    """Also while the list of buckets, which the gateway follows, comes late."""
    client = s3.client()
    s3.control_plane.is_slow = True
    try:
        for value in ("a", "b", "c"):
            tags = [{"Key": "team", "Value": value}]
            client.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
            assert client.get_bucket_tagging(Bucket=bucket)["TagSet"] == tags
        client.delete_bucket_tagging(Bucket=bucket)
        assert error_of(client.get_bucket_tagging, Bucket=bucket) == (404, "NoSuchTagSet")
    finally:
        s3.control_plane.is_slow = False
        s3.loop.call_soon_threadsafe(s3.control_plane.access_changed)
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "a/"}, "Expiration": {"Days": 1}}
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    client.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
    assert client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"][0]["ID"] == "r"


def test_what_is_fixed_or_not_served(s3: Served, bucket: str) -> None:
    client = s3.client()
    assert client.get_bucket_acl(Bucket=bucket)["Grants"][0]["Permission"] == "FULL_CONTROL"
    client.put_bucket_acl(Bucket=bucket, ACL="private")
    assert error_of(client.get_bucket_policy, Bucket=bucket) == (404, "NoSuchBucketPolicy")
    assert error_of(client.put_bucket_policy, Bucket=bucket, Policy="{}") == (501, "NotImplemented")
    rules = client.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    assert error_of(client.get_bucket_website, Bucket=bucket)[0] == 404
    assert error_of(client.get_bucket_replication, Bucket=bucket)[0] == 404
    assert error_of(client.get_object_lock_configuration, Bucket=bucket)[0] == 404
    assert client.get_bucket_request_payment(Bucket=bucket)["Payer"] == "BucketOwner"
    website = {"IndexDocument": {"Suffix": "index.html"}}
    assert error_of(client.put_bucket_website, Bucket=bucket, WebsiteConfiguration=website)[0] == 501


@pytest.mark.parametrize("name", ["select", "restore", "torrent", "append", "renameObject"])
def test_an_unknown_part_of_an_object_is_not_the_object(s3: Served, bucket: str, name: str) -> None:
    from tests.fast.object_gateway.s3.raw import signed_head, status_of  # noqa: PLC0415

    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"whole")
    for method in ("GET", "PUT", "DELETE", "POST"):
        head = signed_head(s3, method, f"/{bucket}/k?{name}", {"Connection": "close"})
        assert status_of(s3.raw(head)) in (405, 501)
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"whole"


def test_lifecycle_rules_come_back_as_they_were_put(s3: Served, bucket: str) -> None:
    """Older ones have a Prefix in place of a Filter. Tools show a change where they come back otherwise."""
    client = s3.client()
    old = {"ID": "old", "Status": "Enabled", "Prefix": "logs/", "Expiration": {"Days": 3}}
    whole = {"ID": "whole", "Status": "Disabled", "Prefix": "", "Expiration": {"Days": 4}}
    new = {"ID": "new", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 5}}
    for rules in ([old, whole, new], [{**old, "ID": "new"}, {**new, "ID": "old"}]):
        client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
        assert client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == rules
    [first, _] = s3.store.bucket(bucket).lifecycle
    assert first.filter.prefix == "logs/"


@pytest.mark.parametrize("prefix", ["\n", "a b+c%20", "ä/", "\t", "\x01"])
def test_prefixes_in_lists(s3: Served, bucket: str, prefix: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key=f"{prefix}k", Body=b"")
    first = client.list_objects(Bucket=bucket, Prefix=prefix)
    assert first["Prefix"] == (prefix if prefix != "\x01" else "%01")
    second = client.list_objects_v2(Bucket=bucket, Prefix=prefix)
    assert second["Prefix"] == prefix
    assert [each["Key"] for found in (first, second) for each in found["Contents"]] == [f"{prefix}k"] * 2
