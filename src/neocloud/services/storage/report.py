"""The report of object storage for the operator: buckets that only the gateway has, its last scrub, and the
engine that has the bodies.
"""

import json
from collections.abc import Mapping

from neocloud.core import contract
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import AuditEvent, Transaction
from neocloud.messages.neocloud.storage.v1 import BlobPlace, ScrubReport
from neocloud.services.iam.types import operators_tenant_id
from neocloud.services.storage.gateway_link import BucketBoard
from neocloud.services.storage.public import BucketSources
from neocloud.services.storage.types import BUCKET

_SECRETS_ID, _SCRUB = "storage", "last-scrub"
_METHOD = "neocloud.storage.v1.ObjectGatewayService/Scrub"
MOST_ORPHANS = 100


async def report(dependencies: Dependencies) -> Mapping[str, object]:
    board = dependencies.provided.get(BucketBoard)
    sources = dependencies.provided.find(BucketSources) or BucketSources()
    kinds = (BUCKET, *(source.kind for source in sources))
    known = await dependencies.store.read(lambda tx: [row.id for kind in kinds for row in tx.list(kind)[0]])
    orphans = board.orphans(known)
    return {
        "is_reporting": board.is_reporting,
        "orphan_buckets": [{"id": each.id, "name": each.name} for each in orphans[:MOST_ORPHANS]],
        "orphan_bucket_count": len(orphans),
        "scrub": _scrub(board.scrub) if board.scrub is not None else None,
        "blob_place": _blob_place(board.blob_place) if board.blob_place is not None else None,
    }


def _blob_place(found: BlobPlace) -> Mapping[str, object]:
    return {
        "name": found.name,
        "endpoint": found.endpoint,
        "problem": found.problem,
        "since": contract.to_datetime(found.since).isoformat(),
    }


def _scrub(found: ScrubReport) -> Mapping[str, object]:
    return {
        "started_at": contract.to_datetime(found.started_at).isoformat(),
        "finished_at": contract.to_datetime(found.finished_at).isoformat(),
        "versions": found.versions,
        "bytes": found.bytes,
        "problem_count": found.problem_count,
        "problems": [
            {"bucket": each.bucket, "key": each.key, "version_id": each.version_id, "what": each.what}
            for each in found.problems
        ],
    }


def note_scrub(tx: Transaction, found: ScrubReport) -> None:
    """Write an audit event for a scrub that found something, once."""
    seen = found.finished_at.SerializeToString()
    if not found.problem_count or tx.secret(_SECRETS_ID, _SCRUB) == seen:
        return
    tx.put_secret(_SECRETS_ID, _SCRUB, seen)
    tenant_id = operators_tenant_id(tx)
    first = found.problems[0] if found.problems else None
    where = f"; the first: {first.bucket}/{first.key} {first.version_id}: {first.what}" if first else ""
    tx.audit(
        AuditEvent(
            id=contract.new_id("auditevent"),
            at=contract.to_datetime(found.finished_at),
            subject="",
            method=_METHOD,
            parent_id=tenant_id,
            resource_id=tenant_id,
            request_id="",
            code=int(contract.Code.DATA_LOSS),
            message=f"A scrub of object storage found {found.problem_count:,} problems{where}",
            tenant_id=tenant_id,
            hierarchy=json.dumps([[tenant_id, "", "tenant"]]),
            resource_kind="tenant",
            resource_name="",
            service="storage",
            action="scrub",
            type="ai.neocloud.storage.scrub",
            status="ERROR",
        )
    )
