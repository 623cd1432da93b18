"""Validation rules of a bucket. Names, lifecycle, CORS, policy and filesystems have files of their own."""

from collections.abc import Iterable, Mapping

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.storage.v1 import (
    Bucket,
    BucketSpec,
    BucketStatus,
    CORSConfiguration,
    CORSRule,
    StorageClass,
    VersioningPolicy,
)
from neocloud.services.storage.rules.filesystems import (
    acquire_filesystem,
    filesystem_violations,
    is_filesystem_bucket,
    set_defaults,
)
from neocloud.services.storage.rules.lifecycle import access_violations, lifecycle_violations
from neocloud.services.storage.rules.names import name_problem
from neocloud.services.storage.rules.policy import group_violations, policy_violations
from neocloud.services.storage.types import BUCKET_NAMES

METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD")
MAX_ID = 255


def cors_violations(cors: CORSConfiguration) -> Iterable[Violation]:
    seen = set[str]()
    for number, rule in enumerate(cors.rules):
        path = f"spec.cors.rules[{number}]"
        yield from _rule_violations(rule, path)
        if rule.id and rule.id in seen:
            yield Violation(f"{path}.id", f"is {rule.id!r} a second time; each must be another")
        seen.add(rule.id)


def _rule_violations(rule: CORSRule, path: str) -> Iterable[Violation]:
    if len(rule.id) > MAX_ID:
        yield Violation(f"{path}.id", f"must have at most {MAX_ID} characters")
    for method in rule.allowed_methods:
        if method not in METHODS:
            yield Violation(f"{path}.allowed_methods", f"has {method!r}; must be of {', '.join(METHODS)}")
    for field in ("allowed_origins", "allowed_headers"):
        if any(value.count("*") > 1 for value in getattr(rule, field)):
            yield Violation(f"{path}.{field}", "must have at most one * in each")
    if any("*" in value for value in rule.expose_headers):
        yield Violation(f"{path}.expose_headers", "must not have a *; name each header")
    if rule.max_age_seconds < 0:
        yield Violation(f"{path}.max_age_seconds", "must not be negative")


_DISABLED = VersioningPolicy.Value("DISABLED")
_SCHEDULED = BucketStatus.State.Value("SCHEDULED_FOR_DELETION")


class BucketRules(Rules[Bucket]):
    def defaults(self, resource: Bucket) -> None:
        resource.spec.versioning_policy = resource.spec.versioning_policy or _DISABLED
        set_defaults(resource.spec)
        for rule in resource.spec.lifecycle_configuration.rules:
            rule.filter.SetInParent()

    def quota_demand(self, resource: Bucket) -> Mapping[str, int]:
        return {"storage.bucket.count": 1}

    def violations(self, new: Bucket, old: Bucket | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is not None and old.status.state == _SCHEDULED:
            raise contract.bad_state(
                old.metadata.id, f"{old.metadata.name} is scheduled for deletion. Undelete it first."
            )
        problem = name_problem(new.metadata.name)
        if problem and old is None:
            yield Violation("metadata.name", problem)
        yield from _spec_violations(new.spec, old.spec if old else None)
        yield from lifecycle_violations(new.spec.lifecycle_configuration)
        yield from cors_violations(new.spec.cors)
        yield from policy_violations(new.spec.bucket_policy)
        yield from group_violations(new.spec.bucket_policy, new.metadata.parent_id, reader)
        yield from filesystem_violations(new, old, reader)

    def complete(self, new: Bucket, old: Bucket | None, reader: ResourceReader) -> None:
        if old is None and not reader.reserve(BUCKET_NAMES, new.metadata.name, new.metadata.id):
            # Names are one space for all tenants, as in S3, so the answer says no more than that it is taken.
            raise contract.already_exists("bucket", new.metadata.name)
        if old is None and is_filesystem_bucket(new.spec):
            acquire_filesystem(new, reader)


def _spec_violations(new: BucketSpec, old: BucketSpec | None) -> Iterable[Violation]:
    was_versioned = old is not None and old.versioning_policy not in (0, _DISABLED)
    if was_versioned and new.versioning_policy == _DISABLED:
        yield Violation(
            "spec.versioning_policy", "was enabled once and cannot become DISABLED again; use SUSPENDED"
        )
    if new.max_size_bytes < 0:
        yield Violation("spec.max_size_bytes", "must be a number of bytes, or 0 for no limit")
    is_regular = not is_filesystem_bucket(new)
    if is_regular and new.default_storage_class == StorageClass.Value("FILESYSTEM"):
        yield Violation("spec.default_storage_class", "is FILESYSTEM, which is for filesystem buckets only")
    yield from access_violations(new.last_access, "spec.last_access")
