"""Preemption: machines that give up their capacity for a request that is not preemptible.

The rule: of all sets of preemptible machines whose capacity is enough, the smallest; among sets of the same
size, the one with the machines that were created last. `preemptible.priority` has no effect: the contract
says that it is deprecated and has none any more.

Everything is decided in the transaction that admits the request: the machines are marked, and from then on
they do not count against others, so no two requests preempt one machine and none takes what another freed.
The request's resource counts from the same moment. It waits until each of its machines has stopped: a
reservation for each, held by the waiting resource, so that they go with it.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import combinations, islice

from neocloud.core import contract, operations, wire
from neocloud.core.reconcile.reconciler import Context, RetryLater
from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.compute.v1 import InstanceSpec, InstanceStatus, MaintenanceEventStatus
from neocloud.messages.nebius.compute.v1 import MaintenanceEventSpec as EventSpec
from neocloud.services.compute.types import (
    GRACE_SECONDS,
    INSTANCE,
    MAINTENANCE_EVENT,
    MAINTENANCE_EVENT_ID_PREFIX,
    InstanceState,
    InstanceStateEnum,
    StopReason,
    read_runtime_state,
    write_runtime_state,
)
from neocloud.services.iam.types import lineage

REASON = "Preempted: its capacity is needed for a machine that is not preemptible."
"""The text for the owner of a preempted machine. It says nothing of who needs the capacity."""
MOST_SETS = 5_000
"""How many sets of one size are compared before one is taken that may not be the smallest."""
LARGEST_SET = 3
"""The largest sets of which all are compared."""
logger = logging.getLogger(__name__)

RECHECK_SECONDS = 1.0

Amounts = Mapping[str, Fraction]
"""Quantities by what they are of: cores, memory, GPUs."""


def is_leaving(row: Resource) -> bool:
    """Return whether an instance is stopping without a stop request: it was preempted, or has ended by
    itself.
    """
    if row.state != InstanceState.STOPPING or row.deleted_at is not None:
        return False
    if InstanceStatus.FromString(row.status).maintenance_event_id:
        return False  # it is started again, with the same capacity
    return not InstanceSpec.FromString(row.spec).stopped


def candidates(instances: Iterable[Resource]) -> list[Resource]:
    """Return the instances that may be preempted, those created last first."""
    states = (InstanceState.STARTING, InstanceState.RUNNING, InstanceState.CREATING, InstanceState.UPDATING)
    found = [
        row
        for row in instances
        if row.state in states
        and row.deleted_at is None
        and (spec := InstanceSpec.FromString(row.spec)).HasField("preemptible")
        and not spec.stopped
    ]
    return sorted(found, key=lambda row: (row.created_at, row.id), reverse=True)


def smallest_set(needed: Amounts, ordered: Sequence[tuple[str, Amounts]]) -> Sequence[str] | None:
    """Return the ids of the fewest holders that have at least what is needed; the first ones among equals.

    None where all together have too little. Where so many are needed that not all sets can be compared, the
    set may be larger than the smallest, and has no holder that is not needed.
    """
    useful = [(each, held) for each, held in ordered if any(held.get(what, 0) > 0 for what in needed)]
    if not _is_enough(needed, [held for _, held in useful]):
        return None
    for size in range(1, LARGEST_SET + 1):
        if not all(_largest(useful, what, size) >= least for what, least in needed.items()):
            continue
        for chosen in islice(combinations(useful, size), MOST_SETS):
            if _is_enough(needed, [held for _, held in chosen]):
                return [each for each, _ in chosen]
    return _many(needed, useful)


def _many(needed: Amounts, holders: Sequence[tuple[str, Amounts]]) -> Sequence[str]:
    """Return enough holders: each time the one that adds most, and at the end without those not needed."""
    pool, kept, missing = list(holders), list[tuple[str, Amounts]](), dict(needed)
    while any(amount > 0 for amount in missing.values()):
        best = max(pool, key=lambda each: _share(each[1], missing, needed))
        pool.remove(best)
        kept.append(best)
        missing = {what: amount - best[1].get(what, 0) for what, amount in missing.items()}
    for each in reversed(list(kept)):
        without = {what: amount + each[1].get(what, 0) for what, amount in missing.items()}
        if all(amount <= 0 for amount in without.values()):
            kept.remove(each)
            missing = without
    return [each for each, _ in kept]


def _share(held: Amounts, missing: Amounts, needed: Amounts) -> float:
    """Return how much of what is missing a holder has, as a sum of shares of what is needed."""
    return sum(
        float(min(held.get(what, 0), max(more, 0))) / float(needed[what]) for what, more in missing.items()
    )


def _largest(holders: Sequence[tuple[str, Amounts]], what: str, size: int) -> Fraction:
    """Return the most that so many holders have together."""
    amounts = sorted((held.get(what, Fraction()) for _, held in holders), reverse=True)
    return sum(amounts[:size], Fraction())


def _is_enough(needed: Amounts, held: Sequence[Amounts]) -> bool:
    return all(sum(each.get(what, Fraction()) for each in held) >= least for what, least in needed.items())


def preempt_instance(tx: Transaction, row: Resource, now: datetime) -> None:
    """Mark a running preemptible instance as preempted, with all that its owner is shown.

    Its reconciler presses the power button and, after the grace time, stops the machine by force.
    """
    runtime = read_runtime_state(tx, row.id)
    write_runtime_state(tx, row.id, replace(runtime, stop_reason=StopReason.PREEMPTED))
    status = InstanceStatus.FromString(row.status)
    status.state, status.reconciling = InstanceStateEnum.Value(InstanceState.STOPPING), True
    tx.update(replace(row, state=InstanceState.STOPPING, status=status.SerializeToString(), updated_at=now))
    operations.abort_unfinished(tx, row.id, now, REASON)
    deadline = now + timedelta(seconds=GRACE_SECONDS)
    insert_event(tx, row.id, now=now, deadline=deadline, reason=REASON, is_planned=False)
    write_audit_event(tx, row, now, action="preempt", message=REASON)
    logger.info("preempted: %s", REASON, extra={"resource": row.id})


def insert_event(
    tx: Transaction, instance_id: str, *, now: datetime, deadline: datetime, reason: str, is_planned: bool
) -> str:
    """Insert a maintenance event of an instance and return its id."""
    event_id = contract.new_id(MAINTENANCE_EVENT_ID_PREFIX)
    status = MaintenanceEventStatus(
        maintenance_id=event_id, created_at=now, sla_deadline_ts=deadline, maintenance_reason=reason
    )
    row = Resource(
        id=event_id,
        kind=MAINTENANCE_EVENT,
        parent_id=instance_id,
        name=event_id,
        created_at=now,
        updated_at=now,
        spec=EventSpec(is_planned=is_planned).SerializeToString(),
        status=status.SerializeToString(),
        owner_id=instance_id,
    )
    tx.insert(row)
    return event_id


def preemption_event(tx: Transaction, instance_id: str) -> MaintenanceEventStatus | None:
    """Return the status of the instance's preemption that is not finished; None without one."""
    return next((status for _, status in _preemptions(tx, instance_id)), None)


def finish_preemption(tx: Transaction, instance_id: str, now: datetime) -> None:
    """Finish the event of a preemption: the instance is started again, or its owner has stopped it."""
    for row, status in _preemptions(tx, instance_id):
        status.finished_at.FromDatetime(now)
        tx.update(replace(row, status=status.SerializeToString()))


def _preemptions(tx: Transaction, instance_id: str) -> list[tuple[Resource, MaintenanceEventStatus]]:
    rows = tx.list(MAINTENANCE_EVENT, parent_id=instance_id)[0]
    found = [(row, MaintenanceEventStatus.FromString(row.status)) for row in rows]
    return [
        (row, status)
        for row, status in found
        if status.maintenance_reason == REASON and not status.HasField("finished_at")
    ]


def write_audit_event(tx: Transaction, row: Resource, now: datetime, *, action: str, message: str) -> None:
    """Write what the cloud did with an instance, for its tenant, without a caller and any request behind it.

    The method is named after the action; the API has no such method.
    """
    rows = list(lineage(row.id, tx.get))
    hierarchy = [[each.id, each.name, wire.noun(each.kind, each.id)] for each in reversed(rows)]
    event = AuditEvent(
        id=contract.new_id("auditevent"),
        at=now,
        subject="",
        method=f"nebius.compute.v1.InstanceService/{action[0].upper()}{action[1:]}",
        parent_id=row.parent_id,
        resource_id=row.id,
        request_id="",
        code=int(contract.Code.OK),
        message=message,
        tenant_id=rows[-1].parent_id or rows[-1].id,
        hierarchy=json.dumps(hierarchy, ensure_ascii=False),
        resource_kind=wire.noun(INSTANCE, row.id),
        resource_name=row.name,
        service="compute",
        action=action,
        type=f"ai.nebius.compute.instance.{action.lower()}",
        status="DONE",
    )
    tx.audit(event)


def _waits_of(resource_id: str) -> str:
    return f"preemption/waits/{resource_id}"


def _awaited(instance_id: str) -> str:
    return f"preemption/awaited/{instance_id}"


def wait_for(
    reserve: Callable[[str, str, str], object], resource_id: str, instance_ids: Collection[str]
) -> None:
    """Record that the resource waits for these instances to stop."""
    for each in instance_ids:
        reserve(_waits_of(resource_id), each, resource_id)
        reserve(_awaited(each), resource_id, resource_id)


def waiting_for(tx: Transaction, instance_id: str) -> Collection[str]:
    """Return the ids of the resources that wait for the instance to stop."""
    return tx.reservations(_awaited(instance_id))


async def wait_for_capacity(context: Context) -> None:
    """Raise RetryLater until the machines that give up their capacity to this resource have stopped."""
    awaited = await context.reservations(_waits_of(context.resource.id))
    stopping: list[Resource] = []
    for instance_id in sorted(awaited):
        row = await context.get(instance_id)
        if row is not None and row.state in (InstanceState.STOPPING, InstanceState.DELETING):
            stopping.append(row)
        else:
            await _release(context, instance_id)
    if stopping:
        deadlines = [await _deadline(context, row) for row in stopping]
        raise RetryLater(_explain(context.resource, stopping, deadlines), delay_seconds=RECHECK_SECONDS)


async def give_up_waiting(context: Context) -> None:
    """Wait for nothing any more: the resource is not to run."""
    for instance_id in await context.reservations(_waits_of(context.resource.id)):
        await _release(context, instance_id)


async def _release(context: Context, instance_id: str) -> None:
    await context.release(_awaited(instance_id), context.resource.id)
    await context.release(_waits_of(context.resource.id), instance_id)


async def _deadline(context: Context, row: Resource) -> datetime | None:
    """Return when the instance is stopped by force, if that is known."""
    events = [
        MaintenanceEventStatus.FromString(each.status)
        for each in await context.list(MAINTENANCE_EVENT, row.id)
    ]
    known = [each.sla_deadline_ts for each in events if each.maintenance_reason == REASON]
    return known[-1].ToDatetime() if known else None


def _explain(resource: Resource, rows: Sequence[Resource], deadlines: Sequence[datetime | None]) -> str:
    """Name the machines of the resource's own project; of others only the time."""
    own = [row for row in rows if row.parent_id == resource.parent_id]
    parts: list[str] = []
    if own:
        names = ", ".join(row.name or row.id for row in own)
        are_preemptible = all(InstanceSpec.FromString(row.spec).HasField("preemptible") for row in own)
        parts.append(f"for {names} to stop{' (preemptible)' if are_preemptible else ''}")
    if len(own) < len(rows):
        parts.append("for capacity that is being freed")
    latest = max((each for each in deadlines if each is not None), default=None)
    until = f", until {latest:%H:%M:%S} UTC" if latest else ""
    return f"waits {' and '.join(parts)}{until}"
