# pyright: strict
"""One record for each request to a bucket that asks for them (`object_audit_logging`)."""

import logging
from dataclasses import asdict, dataclass
from typing import Protocol

import orjson

from neocloud.messages.nebius.storage.v1 import BucketSpec
from neocloud.objects.s3.bucket_view import view
from neocloud.objects.types import Bucket

_ALL = BucketSpec.ObjectAuditLogging.Value("ALL")
_CHANGES = BucketSpec.ObjectAuditLogging.Value("MUTATE_ONLY")
_MAX_TEXT = 1024


@dataclass(frozen=True)
class AuditRecord:
    at: str
    request_id: str
    operation: str
    bucket_id: str
    bucket: str
    key: str
    version_id: str
    subject_id: str
    """"": nobody signed."""
    access_key_id: str
    is_presigned: bool
    client: str
    user_agent: str
    status: int
    error: str
    """The code of the error; "" on success."""
    received_bytes: int
    sent_bytes: int


class Audit(Protocol):
    def record(self, record: AuditRecord) -> None: ...


class LoggedAudit:
    """Writes records to the log `neocloud.objects.audit`, each as a line of JSON."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("neocloud.objects.audit")

    def record(self, record: AuditRecord) -> None:
        self._logger.info("%s", orjson.dumps(asdict(record)).decode())


def is_audited(bucket: Bucket, *, is_change: bool) -> bool:
    wanted = view(bucket).spec.object_audit_logging
    return wanted == _ALL or (wanted == _CHANGES and is_change)


def bounded(text: str) -> str:
    """Return what a client wrote as a record has it."""
    return text[:_MAX_TEXT]
