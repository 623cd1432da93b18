"""Buckets as the control plane sends them, and reports of them as it takes them. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from neocloud.core import contract
from neocloud.messages.nebius.storage.v1 import BucketCounters, BucketSpec, VersioningPolicy
from neocloud.messages.nebius.storage.v1 import LifecycleRule as RuleMessage
from neocloud.messages.nebius.storage.v1 import StorageClass as ClassMessage
from neocloud.messages.neocloud.storage.v1 import (
    BlobPlace,
    BucketReport,
    GatewayBucket,
    ReportBucketsRequest,
    ScrubReport,
)
from neocloud.object_gateway.work.scrub import ScrubResult
from neocloud.object_store.blobs.s3.driver import S3Blobs
from neocloud.object_store.filesystem_view import FilesystemView
from neocloud.object_store.image_types import RemovedImage, RemovedImages
from neocloud.object_store.last_access import AccessCondition, AccessMethod
from neocloud.object_store.lifecycle_rules import ImageRules, LifecycleFilter, LifecycleRule, Transition
from neocloud.object_store.storage_class import SELECTABLE, StorageClass
from neocloud.object_store.types import Bucket, BucketKind, BucketState, Counters, DesiredBucket, Versioning

Mode = GatewayBucket.Mode
SERVE, HIDE, PURGE = Mode.Value("SERVE"), Mode.Value("HIDE"), Mode.Value("PURGE")
REPORTED_TOGETHER = 100
"""Buckets in one request: each has some 70 fields and elements at most, and a request may have 10,000."""
_ENABLED = RuleMessage.Status.Value("ENABLED")


def desired(bucket: GatewayBucket) -> DesiredBucket:
    """Return the bucket for the store. Its document is the message, which the front reads."""
    if bucket.is_registry:
        return _registry(bucket)
    spec = bucket.spec
    policy = VersioningPolicy.Name(spec.versioning_policy)
    return DesiredBucket(
        id=bucket.id,
        name=bucket.name,
        project_id=bucket.project_id,
        generation=bucket.generation,
        created_at=contract.to_datetime(bucket.created_at),
        versioning=Versioning(policy) if policy in Versioning.__members__ else Versioning.DISABLED,
        max_size_bytes=spec.max_size_bytes,
        default_storage_class=_storage_class(spec.default_storage_class),
        force_storage_class=spec.force_storage_class,
        lifecycle=tuple(_rule(rule) for rule in spec.lifecycle_configuration.rules),
        access_filter=_access_filter(spec),
        state=_state(bucket),
        filesystem=_filesystem(bucket),
        document=bucket.SerializeToString(deterministic=True),
    )


def _filesystem(bucket: GatewayBucket) -> FilesystemView | None:
    if not bucket.spec.HasField("filesystem_bucket"):
        return None
    spec = bucket.spec.filesystem_bucket
    return FilesystemView(
        bucket.filesystem_folder,
        spec.directory,
        spec.uid,
        spec.gid,
        int(spec.file_mode, 8) if spec.file_mode else FilesystemView.file_mode,
        int(spec.directory_mode, 8) if spec.directory_mode else FilesystemView.directory_mode,
    )


def registry_name(registry_id: str) -> str:
    """Return the name of a registry in the store: how its paths begin. No bucket has a slash."""
    return f"v2/{registry_id.partition('-')[2]}"


def _registry(bucket: GatewayBucket) -> DesiredBucket:
    return DesiredBucket(
        id=bucket.id,
        name=registry_name(bucket.id),
        project_id=bucket.project_id,
        generation=bucket.generation,
        created_at=contract.to_datetime(bucket.created_at),
        state=_state(bucket),
        kind=BucketKind.REGISTRY,
        image_rules=_image_rules(bucket),
        title=bucket.name,
        document=bucket.SerializeToString(deterministic=True),
    )


def _image_rules(bucket: GatewayBucket) -> ImageRules:
    found = bucket.image_rules
    return ImageRules(found.keep_last, found.untagged_days, found.allows_sparse)


def _state(bucket: GatewayBucket) -> BucketState:
    return BucketState.ACTIVE if bucket.mode == SERVE else BucketState.SCHEDULED_FOR_DELETION


def removed_artifacts(bucket: GatewayBucket) -> list[tuple[str, datetime]]:
    return [(each.id, contract.to_datetime(each.requested_at)) for each in bucket.removed_artifacts]


def report(
    bucket: Bucket,
    counters: Sequence[Counters],
    *,
    is_empty: bool,
    is_protected: bool = False,
    problem: str = "",
    image_count: int = 0,
    removed: RemovedImages | None = None,
) -> BucketReport:
    found = BucketReport(
        id=bucket.id,
        name=bucket.name,
        applied_generation=bucket.generation,
        applied=SERVE if bucket.state is BucketState.ACTIVE else HIDE,
        is_empty=is_empty,
        is_protected=is_protected,
        problem=problem,
        image_count=image_count,
    )
    found.counters.extend(_counters(each) for each in counters)
    if removed is not None:
        found.removed_images.total = removed.total
        found.removed_images.last_at.CopyFrom(contract.timestamp(removed.last_at))
        found.removed_images.last.extend(_image_name(each) for each in removed.last)
    return found


def _image_name(image: RemovedImage) -> str:
    if not image.tags:
        return f"{image.repository}@{image.digest}"
    return f"{image.repository}:{','.join(image.tags)}"


def purged(bucket: GatewayBucket) -> BucketReport:
    return BucketReport(
        id=bucket.id,
        name=bucket.name,
        applied_generation=bucket.generation,
        applied=PURGE,
        is_empty=True,
        is_purged=True,
    )


def in_parts(whole: ReportBucketsRequest) -> Iterator[ReportBucketsRequest]:
    """Yield a report as requests that are no larger than one may be. Of several requests none is complete."""
    if len(whole.buckets) <= REPORTED_TOGETHER:
        yield whole
        return
    for start in range(0, len(whole.buckets), REPORTED_TOGETHER):
        part = ReportBucketsRequest(
            buckets=whole.buckets[start : start + REPORTED_TOGETHER],
            endpoint=whole.endpoint,
            tls_port=whole.tls_port,
            blob_place=whole.blob_place if whole.HasField("blob_place") else None,
        )
        if not start and whole.HasField("scrub"):
            part.scrub.CopyFrom(whole.scrub)
        yield part


def blob_place(blobs: S3Blobs) -> BlobPlace:
    place, attempts = blobs.location, blobs.attempts
    return BlobPlace(
        name=place.name,
        endpoint=place.endpoint,
        problem=attempts.problem,
        since=contract.timestamp(attempts.since),
    )


def scrub_report(last: ScrubResult) -> ScrubReport:
    found = ScrubReport(
        started_at=contract.timestamp(last.started_at),
        finished_at=contract.timestamp(last.finished_at),
        versions=last.versions,
        bytes=last.bytes,
        problem_count=last.problem_count,
    )
    for each in last.problems:
        problem = each.problem
        found.problems.add(
            bucket=each.bucket, key=problem.key, version_id=problem.version_id, what=problem.what
        )
    return found


def _counters(found: Counters) -> BucketCounters:
    message = BucketCounters(storage_class=ClassMessage.Value(found.storage_class))
    current, old = message.counters, message.non_current_counters
    current.simple_objects_quantity = found.simple_objects
    current.simple_objects_size = found.simple_bytes
    current.multipart_objects_quantity = found.multipart_objects
    current.multipart_objects_size = found.multipart_bytes
    current.multipart_uploads_quantity = found.uploads
    current.inflight_parts_quantity = found.parts
    current.inflight_parts_size = found.part_bytes
    old.simple_objects_quantity = found.noncurrent_simple_objects
    old.simple_objects_size = found.noncurrent_simple_bytes
    old.multipart_objects_quantity = found.noncurrent_multipart_objects
    old.multipart_objects_size = found.noncurrent_multipart_bytes
    return message


def _storage_class(value: ClassMessage) -> StorageClass:
    name = ClassMessage.Name(value)
    return StorageClass(name) if name in SELECTABLE else StorageClass.STANDARD  # parts of FILESYSTEM, too


def _access_filter(spec: BucketSpec) -> tuple[AccessCondition, ...]:
    """Return the conditions of `last_access`, or where it has none, those of the lifecycle configuration."""
    given = spec.last_access.conditions or spec.lifecycle_configuration.last_access_filter.conditions
    return tuple(
        AccessCondition(
            is_included=each.type == each.Type.Value("INCLUDE"),
            methods=tuple(AccessMethod(each.Method.Name(method)) for method in each.methods),
            user_agents=tuple(each.user_agents),
        )
        for each in given
    )


def _rule(rule: RuleMessage) -> LifecycleRule:
    given, old, old_class = (
        rule.expiration,
        rule.noncurrent_version_expiration,
        rule.noncurrent_version_transition,
    )
    has_old_class = rule.HasField("noncurrent_version_transition")
    return LifecycleRule(
        id=rule.id,
        is_enabled=rule.status == _ENABLED,
        filter=LifecycleFilter(
            prefix=rule.filter.prefix,
            larger_than=rule.filter.object_size_greater_than_bytes or None,
            smaller_than=rule.filter.object_size_less_than_bytes or None,
            tags={tag.key: tag.value for tag in rule.filter.tags},
        ),
        expire_at=contract.to_datetime(given.date) if _has(given, "expired_with", "date") else None,
        expire_days=given.days if _has(given, "expired_with", "days") else None,
        expire_lone_delete_markers=given.expired_object_delete_marker,
        noncurrent_days=old.noncurrent_days if rule.HasField("noncurrent_version_expiration") else None,
        noncurrent_kept=old.newer_noncurrent_versions,
        abort_upload_days=rule.abort_incomplete_multipart_upload.days_after_initiation or None,
        transition=_transition(rule),
        noncurrent_transition_days=old_class.noncurrent_days if has_old_class else None,
        noncurrent_transition_kept=old_class.newer_noncurrent_versions,
        noncurrent_transition_class=_storage_class(old_class.storage_class) if has_old_class else None,
    )


def _transition(rule: RuleMessage) -> Transition | None:
    found = rule.transition
    if not rule.HasField("transition") or found.WhichOneof("transited_with") is None:
        return None
    return Transition(
        _storage_class(found.storage_class),
        date=contract.to_datetime(found.date) if _has(found, "transited_with", "date") else None,
        days=found.days if _has(found, "transited_with", "days") else None,
        days_since_last_access=found.days_since_last_access
        if _has(found, "transited_with", "days_since_last_access")
        else None,
    )


def _has(message: Any, oneof: str, name: str) -> bool:
    return message.WhichOneof(oneof) == name
