"""What is legal for maintenance windows, and what they ask for at a time. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.fleet.outages import MAINTENANCE_PREFIX
from neocloud.messages.neocloud.fleet.v1 import (
    MaintenanceWindow,
    MaintenanceWindowSpec,
    MaintenanceWindowStatus,
)
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.fleet.types import MAINTENANCE_WINDOW, plain
from neocloud.services.iam.types import CONTAINER
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
    end: datetime
    reason: str

    @property
    def owner(self) -> str:
        return f"{MAINTENANCE_PREFIX}{self.id}"

    @property
    def evidence(self) -> str:
        """The reason of the drain, which users read."""
        return plain(f"maintenance until {self.end:%Y-%m-%d %H:%M} UTC: {self.reason}")

    def has(self, node: str) -> bool:
        return not self.nodes or node in self.nodes

    def is_under_way(self, now: datetime) -> bool:
        return self.start <= now


def windows_of(rows: Iterable[Resource], cluster_id: str, now: datetime) -> Sequence[Window]:
    """Return the windows of a cluster that are not over."""
    found: list[Window] = []
    for row in rows:
        spec = MaintenanceWindowSpec.FromString(row.spec)
        end = contract.to_datetime(spec.end_at)
        if spec.cluster_id == cluster_id and row.deleted_at is None and now < end:
            start = contract.to_datetime(spec.start_at)
            found.append(Window(row.id, frozenset(spec.nodes), start, end, spec.reason))
    return found


class MaintenanceWindowRules(Rules[MaintenanceWindow]):
    def violations(
        self, new: MaintenanceWindow, old: MaintenanceWindow | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        tenants = reader.list(CONTAINER, "")
        if not tenants or new.metadata.parent_id != tenants[0].id:
            raise contract.permission_denied(
                CREATE,
                new.metadata.parent_id,
                "Only an operator of this cloud can announce maintenance, in the operator's tenant.",
            )
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
        if len(windows_of(reader.list(MAINTENANCE_WINDOW), spec.cluster_id, reader.now)) >= MOST_WINDOWS:
            yield Violation("spec.cluster_id", f"has {MOST_WINDOWS} windows already; delete one")
        yield from _cluster_violations(spec, reader.get(spec.cluster_id))


def _cluster_violations(spec: MaintenanceWindowSpec, row: Resource | None) -> Iterable[Violation]:
    if row is None or row.kind != CLUSTER or row.deleted_at is not None:
        yield Violation("spec.cluster_id", "names no Slurm cluster")
        return
    cluster = ClusterSpec.FromString(row.spec)
    if not cluster.auto_repair:
        yield Violation("spec.cluster_id", "names a cluster without auto_repair, whose nodes nobody watches")
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
