"""From what the engine, Slurm and the sources say to the events that are new. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from neocloud.fleet.control.controller import Fleet
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event, InventoryChanged, Phase, Status, Verdict
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.parts import Reader
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.reconcile.maintenance import is_in_maintenance
from neocloud.services.fleet.types import (
    CLUSTER_OWNER,
    FOREIGN_IN_SLURM,
    HOST_MAINTENANCE,
    STOP_OWNER,
    drain_owner,
    plain,
)
from neocloud.services.slurm.public import Worker

LEAST_SECONDS_BETWEEN_DRAINS = 60.0
"""A drain of an owner who has released the node more recently is recorded later: tenants set reasons."""
LEAST_SECONDS_BETWEEN_INVENTORIES = 600.0
"""Time between inventories of a pod: root of it may say something else each time."""
LEAST_SECONDS_OCCUPIED = 60.0
"""How long a job counts at the least that was started on a worker out of service: root of a cluster can start
and end such jobs as fast as it likes."""
WITH_JOBS = frozenset({Phase.IN_SERVICE, Phase.SUSPECT, Phase.DRAINING})
"""Phases in which a job on a worker is nothing special."""
LEFT = "it is no longer in the spec of its cluster"


def new_events(
    log: PoolLog,
    tenant: str,
    workers: Sequence[Worker],
    verdicts: Sequence[Verdict],
    now: float,
    inventories: Sequence[InventoryChanged] = (),
    *,
    is_host_maintained: bool = False,
) -> list[Event]:
    """Return the events that follow from one look, those that change nothing left out.

    `is_host_maintained`: the platform has recorded the maintenance of the host for which Slurm has workers
    drained. Without that, a reason that says so may be the tenant's.
    """
    draft = log.fleet.draft()
    found: list[Event] = []

    def add(events: Iterable[Event]) -> None:
        for event in events:
            if draft.apply(event):
                found.append(event)

    for worker in workers:
        add(_start(worker, draft.nodes.get(worker.name), now))
        if worker.name in draft.nodes:
            add(_work(worker, tenant, draft.nodes[worker.name], now))
    add(new_inventories(draft, inventories, now))
    add(new_verdicts(log, draft, verdicts))
    seen = {worker.name for worker in workers}
    for worker in workers:
        if worker.name in draft.nodes:
            add(_foreign(worker, draft.nodes[worker.name], now, is_host_maintained))
            add(_emptied(worker, draft.nodes[worker.name], now))
            add(_occupied(worker, draft.nodes[worker.name], now))
    for name in [name for name in draft.nodes if name not in seen]:
        add(_left(draft.nodes[name], now))
    return found


def new_inventories(draft: Fleet, found: Iterable[InventoryChanged], now: float) -> Iterator[Event]:
    """Yield what nodes have now."""
    for each in found:
        state = draft.nodes.get(each.node)
        if state is None:
            continue
        last = state.inventory.at if state.inventory else float("-inf")
        if each.reader is not Reader.POD or now >= last + LEAST_SECONDS_BETWEEN_INVENTORIES:
            yield replace(each, at=now)


def new_verdicts(log: PoolLog, draft: Fleet, verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield answers that differ from the last ones, of which one look may have several for a check, and those
    that have failed on a node since before their check left the shadow. In maintenance, only those that pass
    count."""
    answers, unused = dict(log.answers), set(log.unused)
    for verdict in verdicts:
        state = draft.nodes.get(verdict.node)
        if state is None or (verdict.status is not Status.PASS and is_in_maintenance(state)):
            continue
        known = replace(verdict, boot=verdict.boot or state.boot)
        key, answer = (known.node, known.check), (known.status, known.boot)
        is_due = key in unused and not draft.breakers.in_shadow(known.check, known.status)
        if answers.get(key) != answer or is_due:
            answers[key] = answer
            unused.discard(key)
            yield known


def _start(worker: Worker, state: NodeState | None, now: float) -> Iterator[Event]:
    """A worker becomes known when it first runs; it is as if drained until it has passed its checks."""
    if not worker.boot or worker.started_at is None:
        return
    if state is None:
        *above, leaf = worker.place or ("",)
        rack = above[-1] if above else ""
        yield e.Registered(now, worker.name, rack, leaf, Phase.DRAINED)
    if state is None or state.boot != worker.boot:
        yield e.Booted(max(now, worker.started_at.timestamp()), worker.name, worker.boot, worker.ended)


def _foreign(worker: Worker, state: NodeState, now: float, is_host_maintained: bool) -> Iterator[Event]:
    """Drains of others begin and end when Slurm says so, and the spec of the cluster has the worker."""
    owner = drain_owner(worker.reason) if worker.is_drained or _is_set_down(worker) else ""
    if owner == HOST_MAINTENANCE and is_host_maintained:
        owner = ""  # the platform's own record says it
    ended = {CLUSTER_OWNER, STOP_OWNER, *FOREIGN_IN_SLURM} - {owner}
    for hold in state.holds:
        if hold.owner in ended and worker.states:
            yield e.DrainReleased(now, worker.name, hold.owner)
    if owner and all(hold.owner != owner for hold in state.holds):
        released = dict(state.released).get(owner, float("-inf"))
        if now >= released + LEAST_SECONDS_BETWEEN_DRAINS:
            yield e.DrainRequested(now, worker.name, owner, plain(worker.reason) or "no reason given")


def _is_set_down(worker: Worker) -> bool:
    """Return whether somebody set a worker DOWN that answers."""
    return worker.is_registered and "DOWN" in worker.states and "NOT_RESPONDING" not in worker.states


def _work(worker: Worker, tenant: str, state: NodeState, now: float) -> Iterator[Event]:
    job = str(worker.job) if worker.job else ""
    if state.job and state.job != job:
        yield e.Unassigned(now, worker.name, state.job)
    if job and state.job != job:
        yield e.Assigned(now, worker.name, tenant, job)


def _occupied(worker: Worker, state: NodeState, now: float) -> Iterator[Event]:
    """Root of a cluster can resume a worker that is out of service, and run jobs there."""
    job = str(worker.job) if worker.job else ""
    takes_over = state.phase is Phase.READY_SPARE and state.reserved_for is not None
    if job and job != state.job and state.phase not in WITH_JOBS and not takes_over:
        yield e.Occupied(now, worker.name, job)
    elif not job and state.is_occupied and now >= state.occupied_at + LEAST_SECONDS_OCCUPIED:
        yield e.Vacated(now, worker.name)


def _emptied(worker: Worker, state: NodeState, now: float) -> Iterator[Event]:
    takes_none = worker.is_drained or "DOWN" in worker.states
    if state.phase is Phase.DRAINING and takes_none and not worker.is_busy:
        yield e.Drained(now, worker.name)


def _left(state: NodeState, now: float) -> Iterator[Event]:
    if all(hold.owner != CLUSTER_OWNER for hold in state.holds):
        yield e.DrainRequested(now, state.node, CLUSTER_OWNER, LEFT)
    if state.phase is Phase.DRAINING:
        yield e.Drained(now, state.node)
    if state.inventory is not None and state.inventory.parts:
        yield e.InventoryChanged(now, state.node, Reader.CLOUD, ())


def stop_events(log: PoolLog, now: float) -> list[Event]:
    """Return drains of all nodes of a cloud that was stopped: that they start again proves nothing bad."""
    nodes = log.fleet.nodes.values()
    return [
        event
        for state in nodes
        if all(hold.owner != STOP_OWNER for hold in state.holds)
        for event in (
            e.DrainRequested(now, state.node, STOP_OWNER, "the cloud was stopped"),
            e.Drained(now, state.node),
        )
    ]
