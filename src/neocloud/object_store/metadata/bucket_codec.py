# pyright: strict
"""Buckets as rows: what the control plane wants of a bucket, in JSON."""

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

import orjson

from neocloud.object_store import front_settings
from neocloud.object_store.filesystem_view import FilesystemView
from neocloud.object_store.last_access import AccessCondition, AccessMethod
from neocloud.object_store.lifecycle_rules import ImageRules, LifecycleFilter, LifecycleRule, Transition
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    Bucket,
    BucketKind,
    BucketState,
    DefaultRetention,
    DesiredBucket,
    RetentionMode,
    Versioning,
)


def encode(bucket: Bucket) -> bytes:
    """Return all but the document."""
    return orjson.dumps(replace(bucket, document=b""), default=bytes.decode)


def decode(settings: bytes, document: bytes) -> Bucket:
    found: dict[str, Any] = orjson.loads(settings)
    retention, filesystem = found["default_retention"], found.get("filesystem")
    values: dict[str, Any] = {
        **found,
        "created_at": datetime.fromisoformat(found["created_at"]),
        "versioning": Versioning(found["versioning"]),
        "default_storage_class": StorageClass(found["default_storage_class"]),
        "lifecycle": tuple(_rule(each) for each in found["lifecycle"]),
        "access_filter": tuple(_condition(each) for each in found.get("access_filter", ())),
        "image_rules": ImageRules(**found.get("image_rules", {})),
        "default_retention": retention
        and DefaultRetention(RetentionMode(retention["mode"]), retention["days"], retention.get("years", 0)),
        "state": BucketState(found["state"]),
        "kind": BucketKind(found.get("kind", BucketKind.S3)),
        "filesystem": filesystem and FilesystemView(**filesystem),
        "front": front_settings.decoded(found.get("front", {})),
        "document": document,
    }
    return Bucket(**values)


def applied(desired: DesiredBucket, before: Bucket | None) -> Bucket:
    """Return the bucket as it will be; its object lock and the settings of the S3 front stay."""
    bucket = Bucket(**{each.name: getattr(desired, each.name) for each in fields(DesiredBucket)})
    if before is None:
        return bucket
    return replace(
        bucket,
        has_object_lock=before.has_object_lock,
        default_retention=before.default_retention,
        front=before.front,
    )


def _rule(found: Mapping[str, Any]) -> LifecycleRule:
    transition = found["transition"]
    noncurrent_class = found["noncurrent_transition_class"]
    values: dict[str, Any] = {
        **found,
        "filter": LifecycleFilter(**found["filter"]),
        "expire_at": _time(found["expire_at"]),
        "transition": transition
        and Transition(
            StorageClass(transition["storage_class"]),
            _time(transition["date"]),
            transition["days"],
            transition.get("days_since_last_access"),
        ),
        "noncurrent_transition_class": noncurrent_class and StorageClass(noncurrent_class),
    }
    return LifecycleRule(**values)


def _condition(found: Mapping[str, Any]) -> AccessCondition:
    methods = tuple(AccessMethod(each) for each in found["methods"])
    return AccessCondition(found["is_included"], methods, tuple(found["user_agents"]))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
