"""Releases: promote and roll back, the routes that follow from them, and what the gateway reports of them."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from neocloud.core import contract, wire
from neocloud.core.service import Call, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.neocloud.inference.v1 import (
    ListRoutesResponse,
    Model,
    PromoteReleaseRequest,
    Release,
    ReleaseReport,
    ReleaseStatus,
    RollBackReleaseRequest,
)
from neocloud.services.inference.types import (
    ACTIVE_RELEASE,
    FAST_SUFFIX,
    RELEASE,
    ReleaseState,
    releases_namespace,
)

BY_HAND = "It was rolled back by a caller."
LONGEST_REASON = 500


async def promote(call: Call, request: PromoteReleaseRequest) -> Write[Operation]:
    now = call.dependencies.clock.now()
    return Write(lambda tx: _end(tx, request.id, ReleaseState.PROMOTED, "", now))


async def roll_back(call: Call, request: RollBackReleaseRequest) -> Write[Operation]:
    now, why = call.dependencies.clock.now(), request.reason.strip() or BY_HAND
    return Write(lambda tx: _end(tx, request.id, ReleaseState.ROLLED_BACK, why, now))


def _end(tx: Transaction, release_id: str, state: ReleaseState, why: str, now: datetime) -> NewOperation:
    row = row_to_change(tx, RELEASE, release_id, "release")
    may_be = (ReleaseState.ACTIVE, *([ReleaseState.PROMOTED] if state is ReleaseState.ROLLED_BACK else []))
    if row.state not in may_be:
        raise contract.bad_state(row.id, f"The release {row.name} is {row.state} already; create another.")
    release: Release = wire.resource_message(row)
    return NewOperation(end_release(tx, row, release, state, why, now), f"release {row.name}")


def end_release(
    tx: Transaction, row: Resource, release: Release, state: ReleaseState, why: str, now: datetime
) -> Resource:
    """Store the end of an active release, after which the model may have another one."""
    release.status.state = ReleaseStatus.State.Value(state)
    release.status.message = why
    release.status.ended_at.FromDatetime(now)
    if row.state == ReleaseState.ACTIVE:
        tx.release(releases_namespace(release.spec.model_id), ACTIVE_RELEASE)
    return _store(tx, row, release, state, now)


def _store(tx: Transaction, row: Resource, release: Release, state: str, now: datetime) -> Resource:
    changed = replace(
        row,
        status=release.status.SerializeToString(),
        state=state,
        updated_at=now,
        resource_version=row.resource_version + 1,
    )
    tx.update(changed)
    return changed


def apply_report(tx: Transaction, report: ReleaseReport, now: datetime) -> None:
    """Add what the gateway counted, and take the candidate back where it did."""
    row = tx.get(report.release_id)
    if row is None or row.kind != RELEASE or row.deleted_at is not None:
        return
    release: Release = wire.resource_message(row)
    status = release.status
    answered, more = status.requests - status.failed, report.requests - report.failed
    if answered + more > 0:
        total = status.first_byte_milliseconds * answered + report.first_byte_milliseconds
        status.first_byte_milliseconds = round(total / (answered + more))
    status.requests += max(0, report.requests)
    status.failed += max(0, report.failed)
    status.liked = max(0, status.liked + report.liked)
    status.disliked = max(0, status.disliked + report.disliked)
    if report.rolled_back_because and row.state == ReleaseState.ACTIVE:
        why = report.rolled_back_because[:LONGEST_REASON]
        end_release(tx, row, release, ReleaseState.ROLLED_BACK, why, now)
    else:
        _store(tx, row, release, row.state, now)


def add_releases(
    tx: Transaction, answer: ListRoutesResponse, rows: list[Resource], models: Mapping[str, Model]
) -> None:
    """Add the releases that route requests: the newest promoted one of each model, and the active one."""
    shown: dict[tuple[str, str], tuple[Resource, Release]] = {}
    for row in rows:
        release: Release = wire.resource_message(row)
        if row.state in (ReleaseState.ACTIVE, ReleaseState.PROMOTED):
            key = (release.spec.model_id, row.state)
            before = shown.get(key)
            if before is None or _ended(before[1]) <= _ended(release):
                shown[key] = (row, release)
    served = {(route.tenant_id, model.name) for route in answer.routes for model in route.models}
    for _, (row, release) in sorted(shown.items(), key=lambda each: each[0]):
        project, spec = tx.get(row.parent_id), release.spec
        model, candidate = models.get(spec.model_id), models.get(spec.candidate_model_id)
        if model is None or candidate is None or project is None:
            continue
        for suffix in ("", FAST_SUFFIX):
            candidate_name = candidate.metadata.name + suffix
            if suffix and (project.parent_id, candidate_name) not in served:
                continue
            answer.releases.add(
                release_id=row.id,
                tenant_id=project.parent_id,
                name=model.metadata.name + suffix,
                candidate_name=candidate_name,
                share_percent=spec.share_percent,
                most_failed_percent=spec.most_failed_percent,
                slowest_first_byte_milliseconds=spec.slowest_first_byte_milliseconds,
                least_requests=spec.least_requests,
                most_disliked_percent=spec.most_disliked_percent,
                is_promoted=row.state == ReleaseState.PROMOTED,
            )


def _ended(release: Release) -> int:
    return release.status.ended_at.ToNanoseconds()
