# pyright: strict
"""One event for each request to a bucket that asks for them (`object_audit_logging`)."""

from typing import Protocol

from neocloud.messages.nebius.storage.v1 import BucketSpec
from neocloud.messages.neocloud.storage.v1 import ObjectEvent
from neocloud.object_gateway.s3.bucket_view import view
from neocloud.object_store.types import Bucket

_ALL = BucketSpec.ObjectAuditLogging.Value("ALL")
_CHANGES = BucketSpec.ObjectAuditLogging.Value("MUTATE_ONLY")
_MAX_TEXT = 1024


class Audit(Protocol):
    def record(self, event: ObjectEvent) -> None: ...


def is_audited(bucket: Bucket, *, is_change: bool) -> bool:
    wanted = view(bucket).spec.object_audit_logging
    return wanted == _ALL or (wanted == _CHANGES and is_change)


def bounded(text: str) -> str:
    """Return what a client wrote as an event has it."""
    return text[:_MAX_TEXT]
