"""Lifecycle configurations: S3's XML and the messages of the storage API."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from neocloud.core import contract
from neocloud.core.untrusted.xml_elements import Element, malformed
from neocloud.messages.nebius.storage.v1 import LifecycleFilter, LifecycleRule, StorageClass
from neocloud.object_gateway.s3.errors import S3Error, invalid, not_served
from neocloud.object_gateway.s3.headers import iso_time
from neocloud.object_gateway.s3.xml_out import Markup, document, element, joined, optional, time

MAX_RULES = 1000
_STATUS = {"Enabled": "ENABLED", "Disabled": "DISABLED"}
_MAX_NUMBER = 2**31 - 1


def write_lifecycle(rules: Iterable[LifecycleRule], prefix_rules: Collection[str]) -> bytes:
    """`prefix_rules` are the ids of those that came with a Prefix in place of a Filter."""
    return document("LifecycleConfiguration", joined(_rule(rule, prefix_rules) for rule in rules))


def _rule(rule: LifecycleRule, prefix_rules: Collection[str]) -> Markup:
    is_enabled = rule.status == LifecycleRule.Status.Value("ENABLED")
    is_old = rule.id in prefix_rules and rule.filter == LifecycleFilter(prefix=rule.filter.prefix)
    parts = [
        element("ID", rule.id),
        element("Prefix", rule.filter.prefix) if is_old else _filter(rule.filter),
        element("Status", "Enabled" if is_enabled else "Disabled"),
    ]
    if rule.HasField("expiration"):
        found = rule.expiration
        marker = element("ExpiredObjectDeleteMarker", True) if found.expired_object_delete_marker else ""
        parts.append(element("Expiration", _when(found, "expired_with"), Markup(marker)))
    if rule.HasField("noncurrent_version_expiration"):
        parts.append(_noncurrent("NoncurrentVersionExpiration", rule.noncurrent_version_expiration))
    if rule.HasField("abort_incomplete_multipart_upload"):
        days = element("DaysAfterInitiation", rule.abort_incomplete_multipart_upload.days_after_initiation)
        parts.append(element("AbortIncompleteMultipartUpload", days))
    if rule.HasField("transition"):
        found = rule.transition
        kind = element("StorageClass", StorageClass.Name(found.storage_class))
        parts.append(element("Transition", _when(found, "transited_with"), kind))
    if rule.HasField("noncurrent_version_transition"):
        found = rule.noncurrent_version_transition
        kind = element("StorageClass", StorageClass.Name(found.storage_class))
        parts.append(_noncurrent("NoncurrentVersionTransition", found, kind))
    return element("Rule", *parts)


def _when(found: Any, oneof: str) -> Markup:
    given = found.WhichOneof(oneof)
    if given == "date":
        return element("Date", time(contract.to_datetime(found.date)))
    if given == "days_since_last_access":  # not in S3: clients of S3 see a transition without a time
        return element("DaysSinceLastAccess", found.days_since_last_access)
    return element("Days", found.days) if given == "days" else Markup("")


def _noncurrent(name: str, found: Any, *more: Markup) -> Markup:
    days = element("NoncurrentDays", found.noncurrent_days)
    kept = ""
    if found.HasField("newer_noncurrent_versions"):
        kept = element("NewerNoncurrentVersions", found.newer_noncurrent_versions)
    return element(name, days, Markup(kept), *more)


def _filter(found: LifecycleFilter) -> Markup:
    parts = [
        optional("Prefix", found.prefix),
        optional("ObjectSizeGreaterThan", found.object_size_greater_than_bytes or None),
        optional("ObjectSizeLessThan", found.object_size_less_than_bytes or None),
        *(element("Tag", element("Key", tag.key), element("Value", tag.value)) for tag in found.tags),
    ]
    given = [each for each in parts if each]
    if not given:
        return element("Filter", element("Prefix", ""))
    return element("Filter", element("And", *given) if len(given) > 1 else given[0])


def read_lifecycle(root: Element) -> tuple[Sequence[LifecycleRule], tuple[str, ...]]:
    """Return the rules, and the ids of those with a Prefix in place of a Filter. Raises S3Error for what is
    malformed or not served; what the values mean the control plane checks."""
    given = root.all("Rule")
    if not 1 <= len(given) <= MAX_RULES:
        raise malformed(f"LifecycleConfiguration needs 1 to {MAX_RULES} rules.")
    rules = [_read_rule(each, number) for number, each in enumerate(given, 1)]
    if len({rule.id for rule in rules}) < len(rules):
        raise invalid("Each rule needs an ID of its own.")
    old = [rule.id for rule, each in zip(rules, given, strict=True) if _is_old(each)]
    return rules, tuple(old)


def _is_old(given: Element) -> bool:
    return given.find("Prefix") is not None and given.find("Filter") is None


def _read_rule(given: Element, number: int) -> LifecycleRule:
    identity = given.get("ID").strip() or f"rule-{number}"
    if len(identity) > 255:
        raise invalid("The ID of a rule has at most 255 characters.")
    if given.require("Status") not in _STATUS:
        raise malformed("Status is Enabled or Disabled.")
    rule = LifecycleRule(id=identity, status=LifecycleRule.Status.Value(_STATUS[given.get("Status")]))
    _read_filter(given, rule.filter)
    if len(given.all("Transition")) > 1 or len(given.all("NoncurrentVersionTransition")) > 1:
        raise not_served("More than one transition in a rule")
    if found := given.find("Expiration"):
        _read_when(found, rule.expiration)
        rule.expiration.expired_object_delete_marker = found.get("ExpiredObjectDeleteMarker") == "true"
    if found := given.find("NoncurrentVersionExpiration"):
        _read_noncurrent(found, rule.noncurrent_version_expiration)
    if found := given.find("AbortIncompleteMultipartUpload"):
        days = _positive(found, "DaysAfterInitiation")
        rule.abort_incomplete_multipart_upload.days_after_initiation = days
    if found := given.find("Transition"):
        _read_when(found, rule.transition)
        if found.find("DaysSinceLastAccess"):
            if rule.transition.WhichOneof("transited_with"):
                raise malformed("A Transition has one of Date, Days and DaysSinceLastAccess.")
            rule.transition.days_since_last_access = _positive(found, "DaysSinceLastAccess")
        rule.transition.storage_class = _storage_class(found)
    if found := given.find("NoncurrentVersionTransition"):
        _read_noncurrent(found, rule.noncurrent_version_transition)
        rule.noncurrent_version_transition.storage_class = _storage_class(found)
    return rule


def _read_filter(given: Element, into: LifecycleFilter) -> None:
    into.prefix = given.get("Prefix")
    found = given.find("Filter")
    if found is None:
        return
    found = found.find("And") or found
    into.prefix = found.get("Prefix", into.prefix)
    into.object_size_greater_than_bytes = found.number("ObjectSizeGreaterThan") or 0
    into.object_size_less_than_bytes = found.number("ObjectSizeLessThan") or 0
    for tag in found.all("Tag"):
        into.tags.add(key=tag.require("Key"), value=tag.require("Value"))


def _read_when(given: Element, into: Any) -> None:
    if given.find("Date"):
        at = iso_time(given.get("Date"))
        if (at.hour, at.minute, at.second, at.microsecond) != (0, 0, 0, 0):
            raise invalid("A date of a lifecycle rule is at midnight in UTC.")
        into.date.CopyFrom(contract.timestamp(at))
    elif given.find("Days"):
        into.days = _positive(given, "Days")


def _read_noncurrent(given: Element, into: Any) -> None:
    into.noncurrent_days = _positive(given, "NoncurrentDays")
    if given.find("NewerNoncurrentVersions"):
        into.newer_noncurrent_versions = _positive(given, "NewerNoncurrentVersions")


def _positive(given: Element, name: str) -> int:
    found = given.number(name)
    if not found or found > _MAX_NUMBER:
        raise invalid(f"{name} must be a positive number.", name=name)
    return found


def _storage_class(given: Element) -> StorageClass:
    name = given.require("StorageClass")
    if name not in ("STANDARD", "ENHANCED_THROUGHPUT", "INTELLIGENT"):
        raise S3Error("InvalidStorageClass", "Use STANDARD, ENHANCED_THROUGHPUT or INTELLIGENT.")
    return StorageClass.Value(name)
