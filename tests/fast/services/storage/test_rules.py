"""Legal and illegal buckets, asked through the API."""

from typing import Any

import pytest

from neocloud.core.contract import Code
from tests.fast.services.storage.cloud import StorageCloud

RULE: dict[str, Any] = {"id": "all", "status": "ENABLED", "expiration": {"days": 1}}
OPEN: dict[str, Any] = {"paths": ["*"], "roles": ["storage.viewer"], "anonymous": {}}


async def refusal(cloud: StorageCloud, name: str = "data-sets", spec: Any = None) -> Any:
    metadata = {"parent_id": cloud.project_id, "name": name}
    return await cloud.refusal("BucketService/Create", metadata=metadata, spec=spec or {})


async def test_names_are_those_of_s3(cloud: StorageCloud) -> None:
    for name in ("", "ab", "A-b", "a_b", "-ab", "ab-", "a..b", "a.-b", "192.168.1.1", "a" * 64):
        assert (await refusal(cloud, name)).code is Code.INVALID_ARGUMENT, name
    for name in ("xn--abc", "sthree-x", "some-s3alias", "x--ol-s3", "../etc", "a/b", "a\nb", "ünïcode"):
        assert (await refusal(cloud, name)).code is Code.INVALID_ARGUMENT, name
    for name in ("abc", "0.a-b.c9", "a" * 63):
        await cloud.create("Bucket", name, {})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"max_size_bytes": -1}, "spec.max_size_bytes"),
        ({"default_storage_class": "FILESYSTEM"}, "spec.default_storage_class"),
        ({"last_access": {"conditions": [{"methods": ["GET_OBJECT"]}]}}, "last_access.conditions[0].type"),
        ({"last_access": {"conditions": [{"type": "INCLUDE", "methods": [0]}]}}, "conditions[0].methods"),
        ({"last_access": {"conditions": [{"type": "EXCLUDE", "user_agents": [""]}]}}, "user_agents"),
        (
            {"lifecycle_configuration": {"last_access_filter": {"conditions": [{"type": 7}]}}},
            "last_access_filter.conditions[0].type",
        ),
        (
            {
                "lifecycle_configuration": {
                    "rules": [
                        RULE | {"transition": {"days_since_last_access": 0, "storage_class": "INTELLIGENT"}}
                    ]
                }
            },
            "days_since_last_access",
        ),
        ({"cors": {"rules": [{"allowed_origins": ["*"], "allowed_methods": ["TRACE"]}]}}, "allowed_methods"),
        ({"cors": {"rules": [{"allowed_origins": ["**"], "allowed_methods": ["GET"]}]}}, "allowed_origins"),
        ({"cors": {"rules": [{"allowed_methods": ["GET"]}]}}, "allowed_origins"),
        ({"lifecycle_configuration": {"rules": [RULE, RULE]}}, "rules[1].id"),
        ({"lifecycle_configuration": {"rules": [{"id": "a", "status": "ENABLED"}]}}, "rules[0]"),
        ({"lifecycle_configuration": {"rules": [RULE | {"expiration": {}}]}}, "expiration"),
        ({"lifecycle_configuration": {"rules": [RULE | {"expiration": {"days": 0}}]}}, "days"),
        (
            {"lifecycle_configuration": {"rules": [RULE | {"expiration": {"date": "2030-01-01T01:00:00Z"}}]}},
            "expiration.date",
        ),
        (
            {
                "lifecycle_configuration": {
                    "rules": [RULE | {"expiration": {"days": 1, "expired_object_delete_marker": True}}]
                }
            },
            "expired_object_delete_marker",
        ),
        (
            {"lifecycle_configuration": {"rules": [RULE | {"transition": {"days": 1}}]}},
            "transition.storage_class",
        ),
        (
            {
                "lifecycle_configuration": {
                    "rules": [
                        RULE
                        | {
                            "filter": {
                                "object_size_greater_than_bytes": 5,
                                "object_size_less_than_bytes": 6,
                            }
                        }
                    ]
                }
            },
            "object_size_less_than_bytes",
        ),
        ({"bucket_policy": {"rules": [OPEN | {"roles": ["storage.editor"]}]}}, "roles"),
        ({"bucket_policy": {"rules": [OPEN | {"roles": ["admin"]}]}}, "roles"),
        ({"bucket_policy": {"rules": [OPEN | {"roles": []}]}}, "roles"),
        ({"bucket_policy": {"rules": [OPEN | {"paths": ["a*b"]}]}}, "paths"),
        ({"bucket_policy": {"rules": [OPEN | {"paths": []}]}}, "paths"),
        ({"bucket_policy": {"rules": [OPEN] * 11}}, "rules"),
        ({"bucket_policy": {"rules": [{"paths": ["*"], "roles": ["storage.viewer"]}]}}, "rules[0]"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named(cloud: StorageCloud, spec: Any, field: str) -> None:
    refused = await refusal(cloud, spec=spec)
    assert refused.code is Code.INVALID_ARGUMENT
    assert any(
        field in violation.field for detail in refused.details for violation in detail.bad_request.violations
    ), refused.message


async def test_versioning_cannot_be_disabled_again(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets", versioning_policy="ENABLED")
    metadata = {"id": bucket_id, "name": "data-sets"}
    refused = await cloud.refusal(
        "BucketService/Update", metadata=metadata, spec={"versioning_policy": "DISABLED"}
    )
    assert refused.code is Code.INVALID_ARGUMENT
    await cloud.call("BucketService/Update", metadata=metadata, spec={"versioning_policy": "SUSPENDED"})


async def test_a_name_is_for_ever(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    refused = await cloud.refusal("BucketService/Update", metadata={"id": bucket_id, "name": "other"})
    assert refused.code is Code.INVALID_ARGUMENT


async def test_a_policy_names_groups_of_its_own_tenant(cloud: StorageCloud) -> None:
    rule = {"paths": ["*"], "roles": ["storage.viewer"], "group_id": "group-e00unknown"}
    refused = await refusal(cloud, spec={"bucket_policy": {"rules": [rule]}})
    assert refused.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT)
    rule["group_id"] = await cloud.group("readers")
    await cloud.bucket("data-sets", bucket_policy={"rules": [rule]})
