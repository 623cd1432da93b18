"""Changes of single versions: tags, retention, legal holds."""

from collections.abc import Mapping
from dataclasses import replace

from neocloud.object_store.backends.protocol import VersionChange
from neocloud.object_store.errors import InvalidRequest
from neocloud.object_store.metadata import versions
from neocloud.object_store.metadata.transaction import BucketRow, Transaction, to_ms
from neocloud.object_store.metadata.versions import VersionRow
from neocloud.object_store.types import Retention


def tags(wanted: Mapping[str, str]) -> VersionChange:
    def change(tx: Transaction, bucket: BucketRow, row: VersionRow) -> VersionRow:
        attributes = replace(versions.show(row, bucket).attributes, tags=wanted)
        return row._replace(attributes=versions.dump_attributes(attributes))

    return change


def retention(wanted: Retention | None, *, bypass_governance: bool) -> VersionChange:
    """The change raises ObjectLocked where the protection would become weaker, and InvalidRequest in a bucket
    without object lock."""

    def change(tx: Transaction, bucket: BucketRow, row: VersionRow) -> VersionRow:
        _check_lock(bucket)
        if _is_weaker(row, wanted):
            unheld = row._replace(legal_hold=0)
            versions.check_unlocked(tx, unheld, bypass_governance=bypass_governance)
        if wanted is None:
            return row._replace(retention_mode=None, retention_ms=None)
        return row._replace(retention_mode=wanted.mode, retention_ms=to_ms(wanted.until))

    return change


def legal_hold(*, is_held: bool) -> VersionChange:
    """The change raises InvalidRequest in a bucket without object lock."""

    def change(tx: Transaction, bucket: BucketRow, row: VersionRow) -> VersionRow:
        _check_lock(bucket)
        return row._replace(legal_hold=int(is_held))

    return change


def _check_lock(bucket: BucketRow) -> None:
    if not bucket.bucket.has_object_lock:
        raise InvalidRequest("The bucket has no object lock.")


def _is_weaker(row: VersionRow, retention: Retention | None) -> bool:
    """Return whether this makes a protection weaker, or changes its mode."""
    if row.retention_ms is None:
        return False
    if retention is None or to_ms(retention.until) < row.retention_ms:
        return True
    return row.retention_mode != retention.mode
