"""The properties of a bucket that S3 needs beside those of the object store: policy, CORS, labels, audit."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from neocloud.messages.nebius.storage.v1 import BucketSpec, CORSRule
from neocloud.messages.neocloud.storage.v1 import GatewayBucket
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.operations import Scope
from neocloud.object_gateway.s3.request import S3Request
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


_METHOD, _HEADERS = "access-control-request-method", "access-control-request-headers"
_VARY = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"


def cors_preflight(request: S3Request, bucket: Bucket | None) -> Mapping[str, str]:
    """Return the headers of the response to OPTIONS. Raises S3Error where no rule allows the request."""
    origin, method = request.header("origin"), request.header(_METHOD)
    if not origin or not method:
        raise S3Error("InvalidRequest", "A preflight needs Origin and Access-Control-Request-Method.")
    wanted = [each.strip().lower() for each in request.header(_HEADERS).split(",") if each.strip()]
    rule = _cors_rule(bucket, origin, method, wanted)
    if rule is None:
        raise S3Error("AccessForbidden", "No CORS rule of the bucket allows this request.")
    found = {**_allowed(rule, origin), "Vary": _VARY}
    if wanted:
        found["Access-Control-Allow-Headers"] = ", ".join(wanted)
    if rule.HasField("max_age_seconds"):
        found["Access-Control-Max-Age"] = str(rule.max_age_seconds)
    return found


def cors_headers(request: S3Request, bucket: Bucket | None) -> Mapping[str, str]:
    """Return what lets a page of another origin read the response."""
    origin = request.header("origin")
    rule = _cors_rule(bucket, origin, request.method, ()) if origin else None
    if rule is None:
        return {}
    found = {**_allowed(rule, origin), "Vary": _VARY}
    if rule.expose_headers:
        found["Access-Control-Expose-Headers"] = ", ".join(rule.expose_headers)
    return found


def _cors_rule(
    bucket: Bucket | None, origin: str, method: str, headers: list[str] | tuple[str, ...]
) -> CORSRule | None:
    if bucket is None:
        return None
    for rule in view(bucket).spec.cors.rules:
        if (
            method in rule.allowed_methods
            and any(matches(each, origin) for each in rule.allowed_origins)
            and all(any(matches(each.lower(), name) for each in rule.allowed_headers) for name in headers)
        ):
            return rule
    return None


def _allowed(rule: CORSRule, origin: str) -> dict[str, str]:
    found = {"Access-Control-Allow-Methods": ", ".join(rule.allowed_methods)}
    if "*" in rule.allowed_origins:
        return {**found, "Access-Control-Allow-Origin": "*"}
    return {
        **found,
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
    }


def matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern with one "*" at most."""
    start, star, end = pattern.partition("*")
    if not star:
        return pattern == text
    return len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end)
