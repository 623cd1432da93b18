"""A refusal of S3 names the permission that the call needs, and the smallest role that has it."""

import pytest
from botocore.exceptions import ClientError as S3Error

from neocloud.cli.storage.service import PERMISSIONS, translated
from neocloud.services.iam.rules.roles import allows


@pytest.mark.parametrize("code", ["403", "AccessDenied"])
@pytest.mark.parametrize("operation", PERMISSIONS)
def test_a_refusal_names_permission_and_role(code: str, operation: str) -> None:
    error = translated(
        S3Error({"Error": {"Code": code, "Message": "Access denied."}}, operation), "the buckets"
    )
    assert error.code == "PERMISSION_DENIED"
    assert f'"{PERMISSIONS[operation]}"' in str(error)
    assert allows(str(error).rstrip(".").rpartition(" ")[2], PERMISSIONS[operation])


def test_a_call_without_a_known_permission_says_what_the_gateway_said() -> None:
    error = translated(S3Error({"Error": {"Code": "AccessDenied", "Message": "No."}}, "GetBucketAcl"), "b")
    assert str(error).startswith("b: No.")
