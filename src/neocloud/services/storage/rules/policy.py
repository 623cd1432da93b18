"""Validation rules of the policy of a bucket: roles of storage, for groups of its tenant or for anybody."""

from collections.abc import Callable, Collection, Iterable

from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.storage.v1 import BucketPolicy
from neocloud.services.iam.types import GROUP, tenant_of

ROLES = ("storage.editor", "storage.viewer", "storage.objects.editor")
ANONYMOUS_ROLES = ("storage.viewer",)
"""The roles that only read."""
MAX_PATH_BYTES = 1024


def policy_violations(policy: BucketPolicy) -> Iterable[Violation]:
    for number, rule in enumerate(policy.rules):
        path = f"spec.bucket_policy.rules[{number}]"
        subject = rule.WhichOneof("subject")
        if subject is None:
            yield Violation(path, "needs group_id or anonymous: whom it gives the roles to")
        if not rule.roles:
            yield Violation(f"{path}.roles", f"is required: one or more of {', '.join(ROLES)}")
        known = ANONYMOUS_ROLES if subject == "anonymous" else ROLES
        for role in rule.roles:
            if role not in known:
                who = " for anonymous access" if subject == "anonymous" else ""
                yield Violation(f"{path}.roles", f"has {role!r}; must be of {', '.join(known)}{who}")
        if not rule.paths:
            yield Violation(f"{path}.paths", 'is required: keys, prefixes that end with "*", or "*" for all')
        for pattern in rule.paths:
            if not pattern or "*" in pattern[:-1] or len(pattern.encode()) > MAX_PATH_BYTES:
                yield Violation(
                    f"{path}.paths",
                    f'has {pattern[:80]!r}; must be a key, or a prefix with one "*" at its end,'
                    f" of at most {MAX_PATH_BYTES} bytes",
                )


def group_violations(policy: BucketPolicy, project_id: str, reader: ResourceReader) -> Iterable[Violation]:
    """A group of another tenant is refused in the same words as one that does not exist."""
    for number, rule in enumerate(policy.rules):
        if rule.WhichOneof("subject") != "group_id":
            continue
        group = reader.get(rule.group_id)
        is_own = group is not None and group.kind == GROUP and group.deleted_at is None
        if not is_own or tenant_of(rule.group_id, reader.get) != tenant_of(project_id, reader.get):
            yield Violation(
                f"spec.bucket_policy.rules[{number}].group_id",
                f"is {rule.group_id!r}; this tenant has no such group",
            )


def policy_allows(
    policy: BucketPolicy,
    group_ids: Collection[str],
    permission: str,
    path: str,
    role_allows: Callable[[str, str], bool],
) -> bool:
    """Return whether a rule allows members of these groups this on a key, or on all below a prefix that ends
    with a slash. The object gateway decides alike (object_gateway/s3/authorizer.py)."""
    for rule in policy.rules:
        is_concerned = rule.WhichOneof("subject") == "anonymous" or rule.group_id in group_ids
        has_right = any(role_allows(role, permission) for role in rule.roles)
        if is_concerned and has_right and any(_covers(each, path) for each in rule.paths):
            return True
    return False


def _covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern
