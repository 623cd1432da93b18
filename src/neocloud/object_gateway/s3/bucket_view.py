# pyright: strict
"""The properties of a bucket that S3 needs beside those of the object store: policy, CORS, labels, audit."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from neocloud.messages.nebius.storage.v1 import BucketSpec
from neocloud.messages.neocloud.storage.v1 import GatewayBucket
from neocloud.object_gateway.s3.operations import Scope
from neocloud.object_store.types import Bucket

_ALL = BucketSpec.ObjectAuditLogging.Value("ALL")
_CHANGES = BucketSpec.ObjectAuditLogging.Value("MUTATE_ONLY")


@dataclass(frozen=True)
class PolicyRule:
    paths: tuple[str, ...]
    """Keys, or prefixes that end with "*"."""
    permissions: frozenset[str]
    group_id: str
    """"": anybody."""

    def allows(self, permission: str, path: str, scope: Scope) -> bool:
        if permission not in self.permissions:
            return False
        if scope is Scope.ANY:
            return True
        if scope is Scope.NONE:
            return "*" in self.paths
        return any(_matches(each, path, scope) for each in self.paths)


@dataclass(frozen=True)
class BucketView:
    tenant_id: str
    rules: tuple[PolicyRule, ...]
    spec: BucketSpec
    labels: Mapping[str, str]

    @property
    def is_public(self) -> bool:
        return any(not rule.group_id for rule in self.rules)

    def allows_anybody(self, permission: str, path: str, scope: Scope) -> bool:
        return any(not rule.group_id and rule.allows(permission, path, scope) for rule in self.rules)


def view(bucket: Bucket) -> BucketView:
    return _parsed(bucket.document)


def is_audited(bucket: Bucket, *, is_change: bool) -> bool:
    """Return whether a request to the bucket makes an event (`object_audit_logging`)."""
    asked = view(bucket).spec.object_audit_logging
    return asked == _ALL or (asked == _CHANGES and is_change)


def is_open(bucket: Bucket) -> bool:
    """Return whether rules for anybody count for everybody: no public access block restricts them to callers
    of the bucket's tenant."""
    blocked = bucket.front.public_access
    return blocked is None or not blocked.restricts


@lru_cache(maxsize=1000)
def _parsed(document: bytes) -> BucketView:
    """`document` is a GatewayBucket from the control plane; empty: none was sent, and access is denied."""
    found = GatewayBucket.FromString(document)
    rules = [
        PolicyRule(tuple(rule.paths), frozenset(rule.permissions), rule.group_id) for rule in found.policy
    ]
    return BucketView(found.tenant_id, tuple(rules), found.spec, dict(found.labels))


def _matches(pattern: str, path: str, scope: Scope) -> bool:
    if pattern.endswith("*"):
        return path.startswith(pattern[:-1])
    return scope is Scope.KEY and path == pattern
