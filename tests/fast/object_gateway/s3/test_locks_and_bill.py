"""Object lock by its headers and calls, and what requests and bytes are counted as."""

import itertools
from datetime import UTC, datetime, timedelta

from neocloud.testing.object_control_plane import PERMISSIONS
from tests.fast.object_gateway.s3.served import REGION, Served, error_of
from tests.fast.object_store.stores import read

_NUMBERS = itertools.count(1)


def locked_bucket(s3: Served) -> str:
    name = f"locked-{next(_NUMBERS)}"
    s3.client().create_bucket(
        Bucket=name,
        ObjectLockEnabledForBucket=True,
        CreateBucketConfiguration={"LocationConstraint": REGION},
    )
    return name


def test_object_lock_of_a_bucket(s3: Served, bucket: str) -> None:
    client, locked = s3.client(), locked_bucket(s3)
    enabled = {"ObjectLockEnabled": "Enabled"}
    assert client.get_object_lock_configuration(Bucket=locked)["ObjectLockConfiguration"] == enabled
    assert client.get_bucket_versioning(Bucket=locked)["Status"] == "Enabled"
    suspended = {"Status": "Suspended"}
    assert error_of(client.put_bucket_versioning, Bucket=locked, VersioningConfiguration=suspended) == (
        409,
        "InvalidBucketState",
    )
    put = client.put_object_lock_configuration
    for default in ({"Mode": "COMPLIANCE", "Years": 2}, {"Mode": "GOVERNANCE", "Days": 3}):
        wanted = {**enabled, "Rule": {"DefaultRetention": default}}
        put(Bucket=locked, ObjectLockConfiguration=wanted)
        assert client.get_object_lock_configuration(Bucket=locked)["ObjectLockConfiguration"] == wanted
    client.put_object(Bucket=locked, Key="k", Body=b"x")
    found = client.head_object(Bucket=locked, Key="k")
    assert found["ObjectLockMode"] == "GOVERNANCE"
    assert timedelta(days=2) < found["ObjectLockRetainUntilDate"] - datetime.now(UTC) <= timedelta(days=3)
    for default, code in (
        ({"Mode": "GOVERNANCE", "Days": 0}, "InvalidRetentionPeriod"),
        ({"Mode": "GOVERNANCE", "Years": -1}, "InvalidRetentionPeriod"),
        ({"Mode": "GOVERNANCE", "Days": 40_000}, "InvalidRetentionPeriod"),
        ({"Mode": "governance", "Days": 1}, "MalformedXML"),
        ({"Mode": "GOVERNANCE"}, "MalformedXML"),
        ({"Mode": "GOVERNANCE", "Days": 1, "Years": 1}, "MalformedXML"),
    ):
        wrong = {**enabled, "Rule": {"DefaultRetention": default}}
        assert error_of(put, Bucket=locked, ObjectLockConfiguration=wrong) == (400, code)
    disabled = {"ObjectLockEnabled": "Disabled"}
    assert error_of(put, Bucket=locked, ObjectLockConfiguration=disabled) == (400, "MalformedXML")
    assert error_of(put, Bucket=bucket, ObjectLockConfiguration=enabled) == (409, "InvalidBucketState")
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    put(Bucket=bucket, ObjectLockConfiguration=enabled)
    assert client.get_object_lock_configuration(Bucket=bucket)["ObjectLockConfiguration"] == enabled
    few = s3.client(s3.account(permissions=PERMISSIONS - {"storage.buckets.update"}))
    assert error_of(few.put_object_lock_configuration, Bucket=locked, ObjectLockConfiguration=enabled) == (
        403,
        "AccessDenied",
    )


def test_retention_and_legal_hold(s3: Served) -> None:
    client, bucket = s3.client(), locked_bucket(s3)
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    version = client.put_object(
        Bucket=bucket, Key="k", Body=b"x", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=until
    )["VersionId"]
    where = {"Bucket": bucket, "Key": "k", "VersionId": version}
    assert client.get_object_retention(**where)["Retention"] == {
        "Mode": "GOVERNANCE",
        "RetainUntilDate": until,
    }
    assert client.head_object(**where)["ObjectLockMode"] == "GOVERNANCE"
    assert error_of(client.delete_object, **where) == (403, "AccessDenied")
    longer = {"Mode": "GOVERNANCE", "RetainUntilDate": until + timedelta(days=1)}
    client.put_object_retention(**where, Retention=longer)
    shorter = {"Mode": "GOVERNANCE", "RetainUntilDate": until}
    assert error_of(client.put_object_retention, **where, Retention=shorter) == (403, "AccessDenied")
    client.put_object_legal_hold(**where, LegalHold={"Status": "ON"})
    assert client.get_object_legal_hold(**where)["LegalHold"]["Status"] == "ON"
    bypass = {"BypassGovernanceRetention": True}
    assert error_of(client.delete_object, **where, **bypass) == (403, "AccessDenied")
    client.put_object_legal_hold(**where, LegalHold={"Status": "OFF"})
    few = s3.client(s3.account(permissions=frozenset(["storage.objects.delete"])))
    assert error_of(few.delete_object, **where, **bypass) == (403, "AccessDenied")
    many = few.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": "k", "VersionId": version}]}, **bypass
    )
    assert [each["Code"] for each in many["Errors"]] == ["AccessDenied"]
    client.delete_object(**where, **bypass)


def test_protecting_needs_a_right_of_its_own(s3: Served) -> None:
    bucket = locked_bucket(s3)
    writer = s3.client(s3.account(permissions=frozenset(["storage.objects.create"])))
    writer.put_object(Bucket=bucket, Key="k", Body=b"x")
    hold = {"ObjectLockLegalHoldStatus": "ON"}
    assert error_of(writer.put_object, Bucket=bucket, Key="k", Body=b"x", **hold) == (403, "AccessDenied")


def test_what_is_counted(s3: Served, bucket: str) -> None:
    client = s3.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    client.get_object(Bucket=bucket, Key="k")["Body"].read()
    client.get_object(Bucket=bucket, Key="k", Range="bytes=0-4")["Body"].read()
    client.head_object(Bucket=bucket, Key="k")
    error_of(client.get_object, Bucket=bucket, Key="none")
    error_of(s3.client(s3.account(permissions=frozenset())).get_object, Bucket=bucket, Key="k")
    error_of(client.get_object, Bucket=bucket, Key="k", IfMatch='"other"')
    client.delete_object(Bucket=bucket, Key="k")
    s3.call(s3.store.flush())
    found = dict(
        read(
            s3.home / "objects",
            "SELECT sku, sum(count) FROM counted_hour JOIN bucket ON bucket.number = counted_hour.bucket"
            " WHERE bucket.name = ? GROUP BY sku",
            bucket,
        )
    )
    assert found == {"requests.modify": 1, "requests.read": 3, "requests.delete": 1, "egress-private": 15}
