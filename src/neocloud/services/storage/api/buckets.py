"""Delete, Purge, Undelete, GetByName and ListWithFilter of buckets.

A deleted bucket is hidden from clients and kept until its time has come. An empty bucket whose request names
no time is not kept.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.storage.v1 import (
    Bucket,
    BucketStatus,
    DeleteBucketRequest,
    ListBucketsWithFilterRequest,
    ListBucketsWithFilterResponse,
    PurgeBucketRequest,
    UndeleteBucketRequest,
)
from neocloud.services.storage.gateway_link import BucketBoard, BucketChanges
from neocloud.services.storage.types import (
    BUCKET,
    BUCKET_SERVICE,
    DEFAULT_TTL,
    BucketState,
    Deletion,
    mark_for_purge,
    read_deletion,
    show_deletion,
    write_deletion,
)

MAX_TTL = timedelta(days=3650)
PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000
_FILESYSTEM = BucketStatus.BucketType.Value("FILESYSTEM")


async def delete(call: Call, request: DeleteBucketRequest) -> Write[Operation]:
    now = call.dependencies.clock.now()
    purge_at, is_named = _purge_at(request, now)

    def work(tx: Transaction) -> NewOperation:
        row = row_to_change(tx, BUCKET, request.id, "bucket")
        earlier = read_deletion(tx, row.id)
        deletion = Deletion(earlier.deleted_at if earlier else now, purge_at, is_kept_when_empty=is_named)
        changed = _changed(tx, row, BucketState.SCHEDULED_FOR_DELETION, deletion, now)
        return NewOperation(changed, _title(row), is_done=False)

    return Write(work, after_commit=call.dependencies.provided.get(BucketChanges).notify)


async def purge(call: Call, request: PurgeBucketRequest) -> Write[Operation]:
    board = call.dependencies.provided.get(BucketBoard)
    now = call.dependencies.clock.now()

    def work(tx: Transaction) -> NewOperation:
        row = row_to_change(tx, BUCKET, request.id, "bucket")
        _require_scheduled(row, "purged")
        report = board.find(row.id)
        if report is not None and report.is_protected:
            raise contract.bad_state(
                row.id,
                f"Object lock protects versions in {row.name}. It is purged when their retention periods are"
                " over; to lift legal holds, undelete it.",
            )
        return NewOperation(mark_for_purge(tx, row, now), _title(row), is_done=False)

    return Write(work, after_commit=call.dependencies.provided.get(BucketChanges).notify)


async def undelete(call: Call, request: UndeleteBucketRequest) -> Write[Operation]:
    now = call.dependencies.clock.now()

    def work(tx: Transaction) -> NewOperation:
        row = row_to_change(tx, BUCKET, request.id, "bucket")
        _require_scheduled(row, "undeleted")
        changed = _changed(tx, row, BucketState.UPDATING, None, now)
        return NewOperation(changed, _title(row), is_done=False)

    return Write(work, after_commit=call.dependencies.provided.get(BucketChanges).notify)


async def list_with_filter(
    call: Call, request: ListBucketsWithFilterRequest
) -> ListBucketsWithFilterResponse:
    """List the buckets of a project. A page has those that the filters let through, which may be none."""
    filters, scope = request.filters, f"{BUCKET_SERVICE}/ListWithFilter:{request.parent_id}"
    if request.page_size < 0:
        raise contract.bad_field("page_size", "must be positive, or 0 for the default")
    size = min(request.page_size or PAGE_SIZE, MAX_PAGE_SIZE)
    page = Page(size, contract.page_after(request.page_token, scope, numbers=1))
    rows, after = await call.dependencies.store.read(
        lambda tx: tx.list(BUCKET, parent_id=request.parent_id, page=page)
    )
    return ListBucketsWithFilterResponse(
        items=[each for each in (wire.message(row, Bucket) for row in rows) if _is_listed(each, filters)],
        next_page_token=contract.page_token(after, scope),
    )


def _is_listed(bucket: Bucket, filters: ListBucketsWithFilterRequest.Filters) -> bool:
    is_filesystem = bucket.spec.HasField("filesystem_bucket")
    if filters.bucket_type and (filters.bucket_type == _FILESYSTEM) != is_filesystem:
        return False
    return filters.filesystem_id in ("", bucket.spec.filesystem_bucket.filesystem_id)


def _purge_at(request: DeleteBucketRequest, now: datetime) -> tuple[datetime, bool]:
    """Return when to purge the bucket, and whether the request says so."""
    given = request.WhichOneof("purge")
    if given == "purge_at":
        at = contract.to_datetime(request.purge_at)
        if not now <= at <= now + MAX_TTL:
            raise contract.bad_field("purge_at", f"must be from now on, and within {MAX_TTL.days} days")
        return at, True
    if given == "ttl":
        ttl = timedelta(seconds=request.ttl.seconds, microseconds=request.ttl.nanos / 1000)
        if not timedelta(0) <= ttl <= MAX_TTL:
            raise contract.bad_field("ttl", f"must be from 0 s to {MAX_TTL.days} days")
        return now + ttl, True
    return now + DEFAULT_TTL, False


def _require_scheduled(row: Resource, what: str) -> None:
    if row.state != BucketState.SCHEDULED_FOR_DELETION:
        raise contract.bad_state(
            row.id, f"{row.name} is {row.state}; only a deleted bucket can be {what}. Delete it first."
        )


def _changed(
    tx: Transaction, row: Resource, state: BucketState, deletion: Deletion | None, now: datetime
) -> Resource:
    """Write a state, as a new version, which the gateway applies and the operation waits for."""
    status = BucketStatus.FromString(row.status)
    status.state = BucketStatus.State.Value(state)
    show_deletion(status, deletion)
    write_deletion(tx, row.id, deletion)
    changed = replace(
        row,
        state=state,
        status=status.SerializeToString(),
        updated_at=now,
        resource_version=row.resource_version + 1,
    )
    tx.update(changed)
    return changed


def _title(row: Resource) -> str:
    return f"bucket {row.name}"


METHODS = (
    Method(
        f"{BUCKET_SERVICE}/Delete",
        delete,
        "storage.buckets.delete",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{BUCKET_SERVICE}/Purge",
        purge,
        "storage.buckets.delete",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{BUCKET_SERVICE}/Undelete",
        undelete,
        "storage.buckets.delete",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{BUCKET_SERVICE}/ListWithFilter",
        list_with_filter,
        "storage.buckets.list",
        target=lambda request: request.parent_id,
    ),
)
