"""Validation rules of the lifecycle rules of a bucket, beyond the annotations of the contract."""

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from neocloud.core import contract
from neocloud.core.kind import Violation
from neocloud.messages.nebius.storage.v1 import (
    LastAccessConfiguration,
    LifecycleAccessFilter,
    LifecycleConfiguration,
    LifecycleExpiration,
    LifecycleFilter,
    LifecycleRule,
    LifecycleTransition,
    StorageClass,
)

AccessCondition = LastAccessConfiguration.Condition
MAX_ID = 255
MAX_PREFIX_BYTES = 1024
_ACTIONS = (
    "expiration",
    "noncurrent_version_expiration",
    "abort_incomplete_multipart_upload",
    "transition",
    "noncurrent_version_transition",
)
_NO_TARGETS = (StorageClass.Value("STORAGE_CLASS_UNSPECIFIED"), StorageClass.Value("FILESYSTEM"))
_TYPES = tuple(AccessCondition.Type.Value(each) for each in ("INCLUDE", "EXCLUDE"))
_METHODS = tuple(value for value in AccessCondition.Method.values() if value)


def lifecycle_violations(lifecycle: LifecycleConfiguration) -> Iterable[Violation]:
    top = "spec.lifecycle_configuration"
    yield from access_violations(lifecycle.last_access_filter, f"{top}.last_access_filter")
    seen = set[str]()
    for number, rule in enumerate(lifecycle.rules):
        path = f"{top}.rules[{number}]"
        if rule.id in seen:
            yield Violation(f"{path}.id", f"is {rule.id!r} a second time; each must be another")
        seen.add(rule.id)
        yield from _rule_violations(rule, path)


def access_violations(
    filter: LifecycleAccessFilter | LastAccessConfiguration, path: str
) -> Iterable[Violation]:
    """Check which reads count as the last access of an object."""
    for number, condition in enumerate(filter.conditions):
        at = f"{path}.conditions[{number}]"
        if condition.type not in _TYPES:
            yield Violation(f"{at}.type", "must be INCLUDE or EXCLUDE")
        if not set(condition.methods) <= set(_METHODS):
            names = ", ".join(AccessCondition.Method.Name(each) for each in _METHODS)
            yield Violation(f"{at}.methods", f"must be of {names}")
        if not all(condition.user_agents):
            yield Violation(f"{at}.user_agents", "has an empty text, which is in every user agent")


def _rule_violations(rule: LifecycleRule, path: str) -> Iterable[Violation]:
    if len(rule.id) > MAX_ID:
        yield Violation(f"{path}.id", f"must have at most {MAX_ID} characters")
    if not any(rule.HasField(action) for action in _ACTIONS):
        yield Violation(path, f"has no action; give it at least one of {', '.join(_ACTIONS)}")
    yield from _filter_violations(rule.filter, f"{path}.filter")
    if rule.HasField("expiration"):
        yield from _expiration_violations(rule.expiration, f"{path}.expiration")
    if rule.HasField("transition"):
        yield from _transition_violations(rule.transition, f"{path}.transition")
    noncurrent = rule.noncurrent_version_transition
    if rule.HasField("noncurrent_version_transition") and noncurrent.storage_class in _NO_TARGETS:
        yield Violation(f"{path}.noncurrent_version_transition.storage_class", _TARGET)
    for field in ("noncurrent_version_expiration", "noncurrent_version_transition"):
        if getattr(rule, field).newer_noncurrent_versions < 0:
            yield Violation(f"{path}.{field}.newer_noncurrent_versions", "must not be negative")


_TARGET = "is required: STANDARD, ENHANCED_THROUGHPUT or INTELLIGENT"


def _filter_violations(wanted: LifecycleFilter, path: str) -> Iterable[Violation]:
    if len(wanted.prefix.encode()) > MAX_PREFIX_BYTES:
        yield Violation(f"{path}.prefix", f"must have at most {MAX_PREFIX_BYTES} bytes, as keys do")
    above, below = wanted.object_size_greater_than_bytes, wanted.object_size_less_than_bytes
    if min(above, below) < 0 or (below and below <= above + 1):
        yield Violation(f"{path}.object_size_less_than_bytes", "leaves no size that matches")
    keys = [tag.key for tag in wanted.tags]
    if len(set(keys)) < len(keys) or not all(keys):
        yield Violation(f"{path}.tags", "must have another key in each tag")


def _expiration_violations(expiration: LifecycleExpiration, path: str) -> Iterable[Violation]:
    when = expiration.WhichOneof("expired_with")
    if expiration.expired_object_delete_marker and when:
        yield Violation(f"{path}.expired_object_delete_marker", f"cannot be together with {when}")
    if not expiration.expired_object_delete_marker and not when:
        yield Violation(path, "needs date, days or expired_object_delete_marker")
    if when == "date":
        yield from _date_violations(expiration.date, f"{path}.date")


def _transition_violations(transition: LifecycleTransition, path: str) -> Iterable[Violation]:
    when = transition.WhichOneof("transited_with")
    if when is None:
        yield Violation(path, "needs date, days or days_since_last_access")
    elif when == "date":
        yield from _date_violations(transition.date, f"{path}.date")
    if transition.storage_class in _NO_TARGETS:
        yield Violation(f"{path}.storage_class", _TARGET)


def _date_violations(date: Timestamp, path: str) -> Iterable[Violation]:
    if date.seconds % 86_400 or date.nanos:
        yield Violation(path, f"is {contract.to_datetime(date):%H:%M:%S}; must be midnight in UTC")
