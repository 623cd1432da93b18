"""Validation rules of maintenance windows, and the work that they request at a time. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.fleet.nodes.outages import MAINTENANCE_PREFIX
from neocloud.messages.neocloud.fleet.v1 import (
    MaintenanceWindow,
    MaintenanceWindowSpec,
    MaintenanceWindowStatus,
)
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.compute.public import HOST_POOL, known_hosts, of_host
from neocloud.services.fleet.types import MAINTENANCE_WINDOW, plain
from neocloud.services.iam.types import require_operator
from neocloud.services.slurm.types import CLUSTER

CREATE = "fleet.maintenanceWindows.create"
LATE = timedelta(minutes=1)
"""How long ago a start may be: the request has taken some time, and clocks differ."""
LONGEST = timedelta(days=30)
MOST_WINDOWS = 100
"""Windows of one cluster that are not over."""
WindowState = MaintenanceWindowStatus.State


@dataclass(frozen=True)
class Window:
    """A window that is not over."""

    id: str
    nodes: frozenset[str]
    """Empty: all."""
    start: datetime
    end: datetime | None
    """None: until an operator ends it."""
    reason: str

    @property
    def owner(self) -> str:
        return f"{MAINTENANCE_PREFIX}{self.id}"

    @property
    def evidence(self) -> str:
        """The reason of the drain, which users read."""
        until = f" until {self.end:%Y-%m-%d %H:%M} UTC" if self.end else ""
        return plain(f"maintenance{until}: {self.reason}")

    def has(self, node: str) -> bool:
        return not self.nodes or node in self.nodes

    def is_under_way(self, now: datetime) -> bool:
        return self.start <= now


def seconds_to_window(windows: Iterable[Window], now: float) -> float:
    """Return the seconds until the next of these windows begins or ends; infinite where none does."""
    times = [moment for each in windows for moment in (each.start, each.end) if moment is not None]
    return min((each.timestamp() - now for each in times if each.timestamp() > now), default=inf)


OnHost = Callable[[str], frozenset[str]]
"""Returns the nodes of a pool that are on a host."""


def windows_of(
    rows: Iterable[Resource], cluster_id: str, now: datetime, on_host: OnHost = lambda host: frozenset()
) -> Sequence[Window]:
    """Return the windows of a cluster that are not over, and those of hosts for what is on them."""
    found: list[Window] = []
    for row in rows:
        spec = MaintenanceWindowSpec.FromString(row.spec)
        start, end = contract.to_datetime(spec.start_at), contract.to_datetime(spec.end_at)
        if row.deleted_at is not None or now >= end:
            continue
        nodes = on_host(spec.host) if spec.host else frozenset(spec.nodes)
        if nodes if spec.host else spec.cluster_id == cluster_id:
            found.append(Window(row.id, nodes, start, end, spec.reason))
    return found


def maintenance_windows(rows: Iterable[Resource], now: datetime, *, from_drain: bool) -> Sequence[Window]:
    """Return maintenance that operators announced for the host as windows of all nodes: from when on workers
    take no new jobs, or from its start on. It ends when it is deleted."""
    found: list[Window] = []
    for row in rows:
        known = of_host(row, now)
        if known is not None:
            spec, start = known[0], contract.to_datetime(known[0].start_at)
            begin = start - spec.drain_before.ToTimedelta() if from_drain else start
            found.append(Window(row.id, frozenset(), begin, None, spec.reason))
    return found


class MaintenanceWindowRules(Rules[MaintenanceWindow]):
    def violations(
        self, new: MaintenanceWindow, old: MaintenanceWindow | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        require_operator(reader, new.metadata.parent_id, CREATE)
        spec = new.spec
        start, end = contract.to_datetime(spec.start_at), contract.to_datetime(spec.end_at)
        if start < reader.now - LATE:
            yield Violation("spec.start_at", "has passed; write a time that is to come, or now")
        if end <= max(start, reader.now):
            yield Violation("spec.end_at", "must be after the start, and to come")
        if end - start > LONGEST:
            yield Violation("spec.end_at", f"must be at most {LONGEST.days} days after the start")
        if not plain(spec.reason):
            yield Violation("spec.reason", "has no printable text; write what is done")
        field = "spec.host" if spec.host else "spec.cluster_id"
        if len(_like(spec, reader)) >= MOST_WINDOWS:
            yield Violation(field, f"has {MOST_WINDOWS} windows already; delete one")
        if spec.host:
            yield from _host_violations(spec, known_hosts(reader.list(HOST_POOL)))
        else:
            yield from _cluster_violations(spec, reader.get(spec.cluster_id))


def _like(spec: MaintenanceWindowSpec, reader: ResourceReader) -> Sequence[Window]:
    """Return the windows of the same cluster or host that are not over."""
    rows = reader.list(MAINTENANCE_WINDOW)
    of_same = [row for row in rows if MaintenanceWindowSpec.FromString(row.spec).host == spec.host]
    return windows_of(of_same, spec.cluster_id, reader.now, lambda host: frozenset({host}))


def _host_violations(spec: MaintenanceWindowSpec, known: frozenset[str]) -> Iterable[Violation]:
    if spec.cluster_id or spec.nodes:
        yield Violation("spec.host", "is for all that is on the host; leave out the cluster and its nodes")
    if spec.host not in known:
        yield Violation("spec.host", f"names no host of this cloud; known: {_some(known) or 'none'}")


def _cluster_violations(spec: MaintenanceWindowSpec, row: Resource | None) -> Iterable[Violation]:
    if row is None or row.kind != CLUSTER or row.deleted_at is not None:
        yield Violation("spec.cluster_id", "names no Slurm cluster")
        return
    cluster = ClusterSpec.FromString(row.spec)
    if not cluster.auto_repair:
        yield Violation("spec.cluster_id", "names a cluster without auto_repair, whose nodes are not watched")
        return
    known = {
        f"{each.name}-{index}"
        for each in cluster.node_sets
        if not each.HasField("elastic")
        for index in range(each.count)
    }
    if unknown := sorted(set(spec.nodes) - known):
        yield Violation("spec.nodes", f"the cluster has no {unknown[0]}; its workers: {_some(known)}")


def _some(names: Iterable[str]) -> str:
    first = sorted(names)[:5]
    return ", ".join(first)


def window_view(window: MaintenanceWindow, tx: Transaction, now: datetime) -> None:
    """Set the state, which follows from the time."""
    if now >= contract.to_datetime(window.spec.end_at):
        window.status.state = WindowState.OVER
    elif now >= contract.to_datetime(window.spec.start_at):
        window.status.state = WindowState.UNDER_WAY
    else:
        window.status.state = WindowState.ANNOUNCED
