"""Maintenance windows of nodes: announced as reservations in Slurm, drains of their own while under way.

Both are computed from the windows that there are, so a run that was cut off is made up for. Jobs that run
are never ended: a node whose job runs past the start stays draining until the job ends.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.outages import HOST_PREFIX, MAINTENANCE_PREFIX
from neocloud.messages.neocloud.fleet.v1 import DrainedHost
from neocloud.services.fleet.rules import OnHost, Window
from neocloud.services.fleet.types import plain
from neocloud.services.slurm.public import (
    RESERVATION_PREFIX,
    Reservation,
    ReservationRefused,
    Worker,
    WorkerNodes,
)


def window_events(nodes: Iterable[NodeState], windows: Sequence[Window], now: datetime) -> Iterator[Event]:
    """Yield drains that begin and end."""
    at = now.timestamp()
    for state in nodes:
        wanted = {each.owner: each for each in windows if each.is_under_way(now) and each.has(state.node)}
        held = {hold.owner for hold in state.holds if hold.owner.startswith(MAINTENANCE_PREFIX)}
        for owner in held - set(wanted):
            yield e.DrainReleased(at, state.node, owner)
        for owner in set(wanted) - held:
            yield e.DrainRequested(at, state.node, owner, wanted[owner].evidence)


def names_on(workers: Sequence[Worker], host: str) -> frozenset[str]:
    """Return the names of the workers on a host; of all where the engine has one host."""
    return frozenset(each.name for each in workers if each.host in (host, ""))


def host_drain_events(
    nodes: Iterable[NodeState], drained: Mapping[str, DrainedHost], on_host: OnHost, now: float
) -> Iterator[Event]:
    """Yield drains of workers that begin and end with those of their hosts. Windows of hosts are windows of
    their workers already."""
    hosts = {name: each for name, each in drained.items() if not each.is_window}
    of_node = {node: host for host in hosts for node in on_host(host)}
    for state in nodes:
        host = of_node.get(state.node, "")
        owners = {hold.owner for hold in state.holds if hold.owner.startswith(HOST_PREFIX)}
        for owner in owners - {f"{HOST_PREFIX}{host}"}:
            yield e.DrainReleased(now, state.node, owner)
        if host and f"{HOST_PREFIX}{host}" not in owners:
            why = plain(f"the host is drained: {hosts[host].reason}")
            yield e.DrainRequested(now, state.node, f"{HOST_PREFIX}{host}", why)


def is_in_maintenance(state: NodeState) -> bool:
    """Return whether faults of the node are expected: its verification judges it when the window is over."""
    return any(hold.owner.startswith(MAINTENANCE_PREFIX) for hold in state.holds)


async def keep_reservations(
    nodes: WorkerNodes, cluster_id: str, node_set: str, workers: Sequence[Worker], windows: Sequence[Window]
) -> dict[str, str]:
    """Make and cancel the reservations of one node set; return the workers for which Slurm refused, and why.

    Raises WorkersUnreachable.
    """
    wanted: dict[str, Reservation] = {}
    for window in windows:
        names = tuple(each.name for each in workers if each.states and window.has(each.name))
        if names and window.end is not None:
            name = _name(window, node_set)
            wanted[name] = Reservation(name, names, window.start, window.end)
    known = await nodes.reservations(cluster_id)
    problems: dict[str, str] = {}
    for name, reservation in wanted.items():
        if name not in known:
            try:
                await nodes.reserve(cluster_id, reservation)
            except ReservationRefused as error:
                problems |= dict.fromkeys(reservation.workers, f"not announced in Slurm: {error}")
    for name in known:
        if name.startswith(RESERVATION_PREFIX) and name.rpartition("_")[2] == node_set and name not in wanted:
            try:
                await nodes.cancel_reservation(cluster_id, name)
            except ReservationRefused as error:
                problems |= {each.name: f"reservation {name} stays: {error}" for each in workers}
    return problems


def _name(window: Window, node_set: str) -> str:
    """No name of a node set has an underscore."""
    return f"{RESERVATION_PREFIX}{window.id}_{node_set}"
