"""Headers of requests that say more than the object: conditions, encryption, owner, ACL, by boto3."""

from typing import Any

import pytest

from tests.fast.object_gateway.s3.served import Served, error_of

KEY = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": bytes(range(32))}


def put_with(s3: Served, bucket: str, headers: dict[str, str]) -> tuple[int, str]:
    return error_of(adding(s3, "PutObject", headers).put_object, Bucket=bucket, Key="k", Body=b"x")


def adding(s3: Served, operation: str, headers: dict[str, str]) -> Any:
    """Return a client that sends headers which boto3 would not."""
    client = s3.client()

    def add(params: dict[str, Any], **_: Any) -> None:
        params["headers"].update(headers)

    client.meta.events.register(f"before-call.s3.{operation}", add)
    return client


def test_a_put_may_name_what_must_not_be_replaced(s3: Served, bucket: str) -> None:
    client = s3.client()
    one = client.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch='"other"')["ETag"]
    assert error_of(client.put_object, Bucket=bucket, Key="k", Body=b"2", IfNoneMatch=one) == (
        412,
        "PreconditionFailed",
    )
    client.put_object(Bucket=bucket, Key="k", Body=b"2", IfMatch="*")
    client.put_object(Bucket=bucket, Key="k", Body=b"3", IfNoneMatch=one)
    several = f'{one}, "other"'
    for condition in ("IfMatch", "IfNoneMatch"):
        refused = error_of(client.put_object, Bucket=bucket, Key="k", Body=b"4", **{condition: several})
        assert refused == (501, "NotImplemented")
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"3"


def test_encryption_headers_that_contradict_each_other(s3: Served, bucket: str) -> None:
    sse, key_id = "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id"
    for headers, expected in (
        ({sse: "aws:kms"}, (501, "NotImplemented")),
        ({sse: "aws:kms", key_id: "k"}, (501, "NotImplemented")),
        ({sse: "AES-256"}, (400, "InvalidArgument")),
        ({key_id: "k"}, (400, "InvalidArgument")),
        ({sse: "AES256", key_id: "k"}, (400, "InvalidArgument")),
    ):
        assert put_with(s3, bucket, headers) == expected
    client = s3.client()
    both = {"ServerSideEncryption": "AES256", **KEY}
    assert error_of(client.put_object, Bucket=bucket, Key="k", Body=b"", **both)[1] == "InvalidArgument"
    client.put_object(Bucket=bucket, Key="k", Body=b"x", ServerSideEncryption="AES256")
    for operation, method in (("GetObject", "get_object"), ("HeadObject", "head_object")):
        reader = adding(s3, operation, {sse: "AES256"})
        assert error_of(getattr(reader, method), Bucket=bucket, Key="k")[0] == 400


def test_encryption_of_a_bucket_is_what_it_is(s3: Served, bucket: str) -> None:
    client = s3.client()

    def rules(algorithm: str) -> dict[str, Any]:
        default = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": algorithm}}
        return {"Bucket": bucket, "ServerSideEncryptionConfiguration": {"Rules": [default]}}

    client.put_bucket_encryption(**rules("AES256"))
    assert error_of(client.put_bucket_encryption, **rules("aws:kms")) == (501, "NotImplemented")
    client.delete_bucket_encryption(Bucket=bucket)
    found = client.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"][0]
    assert found["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"


def test_the_owner_that_is_expected(s3: Served, bucket: str) -> None:
    client, owner = s3.client(), s3.owner.project_id
    client.put_object(Bucket=bucket, Key="k", Body=b"x", ExpectedBucketOwner=owner)
    other = {"Bucket": bucket, "ExpectedBucketOwner": "project-of-others"}
    for call, given in (
        (client.put_object, {"Key": "k", "Body": b"y"}),
        (client.get_object, {"Key": "k"}),
        (client.list_objects_v2, {}),
        (client.delete_objects, {"Delete": {"Objects": [{"Key": "k"}]}}),
        (client.delete_bucket, {}),
    ):
        assert error_of(call, **other, **given) == (403, "AccessDenied")
    copy = {"Bucket": bucket, "Key": "copy", "CopySource": {"Bucket": bucket, "Key": "k"}}
    client.copy_object(**copy, ExpectedSourceBucketOwner=owner)
    assert error_of(client.copy_object, **copy, ExpectedSourceBucketOwner="others") == (403, "AccessDenied")
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_whose_bucket_it_is_cannot_be_guessed(s3: Served, bucket: str) -> None:
    """A caller without rights on the bucket gets the same answer for the right owner as for a wrong one."""
    outsider = s3.client(s3.account(project_id="outsiders"))
    answers: list[Any] = []
    for owner in (s3.owner.project_id, "project-of-others"):
        with pytest.raises(outsider.exceptions.ClientError) as refused:
            outsider.list_objects_v2(Bucket=bucket, ExpectedBucketOwner=owner)
        error: Any = refused.value.response["Error"]
        answers.append((error["Code"], error["Message"]))
    assert answers[0] == answers[1] and answers[0][0] == "AccessDenied"


def test_acls_other_than_those_there_are(s3: Served, bucket: str) -> None:
    client = s3.client()
    assert put_with(s3, bucket, {"x-amz-acl": "everybody"}) == (400, "InvalidArgument")
    grant = client.get_bucket_acl(Bucket=bucket)["Grants"][0]["Grantee"]
    assert grant["ID"] == grant["DisplayName"] == s3.owner.project_id


def test_a_put_into_a_suspended_bucket_names_no_version(s3: Served, bucket: str) -> None:
    client = s3.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    assert "VersionId" not in client.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert client.head_object(Bucket=bucket, Key="k")["VersionId"] == "null"
