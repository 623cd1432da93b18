"""A small world to reconcile: clusters that own a file system and want machines, with faults on request.

The world's two calls are as unkind as real ones: `rent` makes another machine each time it is called, so a
reconciler that does not look first makes duplicates.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neocloud.core import contract, operations, wire
from neocloud.core.clock import Clock
from neocloud.core.kind import Kind
from neocloud.core.reconcile import Worker
from neocloud.core.reconcile.reconciler import Context, ReconcileResult, RetryLater, Step
from neocloud.core.store import OperationRow, Resource, Store

CLUSTER = "neocloud.slurm.v1.Cluster"
FILESYSTEM = "nebius.compute.v1.Filesystem"
PROJECT = "project-e00a"
Cluster = contract.message(CLUSTER)
FilesystemSpec = contract.message("nebius.compute.v1.FilesystemSpec")

KINDS = [
    Kind(
        message=CLUSTER,
        rpc="neocloud.slurm.v1.ClusterService",
        id_prefix="slurmcluster",
        permission="slurm.clusters",
        parent_kinds=("nebius.iam.v1.Container",),
        initial_state="CREATING",
        is_reconciled=True,
    ),
    Kind(
        message=FILESYSTEM,
        rpc="nebius.compute.v1.FilesystemService",
        id_prefix="computefilesystem",
        permission="compute.filesystems",
        parent_kinds=("nebius.iam.v1.Container",),
        initial_state="CREATING",
        is_reconciled=True,
    ),
]


@dataclass
class Office:
    """The world: what exists, by id, and whose it is."""

    clock: Clock
    machines: dict[str, str] = field(default_factory=dict)
    volumes: set[str] = field(default_factory=set)
    faults: list[BaseException] = field(default_factory=list)
    """Raised by the next calls, one each."""
    seconds_per_call: float = 0.1
    calls: list[str] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)

    async def machines_of(self, owner: str) -> list[str]:
        await self._work("machines_of")
        return [machine for machine, of in self.machines.items() if of == owner]

    async def rent(self, owner: str) -> None:
        await self._work("rent")
        self.machines[f"machine-{next(self._numbers)}"] = owner

    async def give_back(self, machine: str) -> None:
        await self._work("give_back")
        self.machines.pop(machine, None)

    async def make_volume(self, owner: str) -> None:
        await self._work("make_volume")
        self.volumes.add(owner)

    async def remove_volume(self, owner: str) -> None:
        await self._work("remove_volume")
        self.volumes.discard(owner)

    async def _work(self, call: str) -> None:
        self.calls.append(call)
        await self.clock.sleep(self.seconds_per_call)
        if self.faults:
            raise self.faults.pop(0)


@dataclass
class ClusterScope:
    context: Context
    cluster: Any
    machines: list[str]

    @property
    def wanted(self) -> int:
        return sum(node_set.count for node_set in self.cluster.spec.node_sets)


class ClusterReconciler:
    kind = CLUSTER

    def __init__(self, office: Office) -> None:
        self._office = office

    async def scope(self, context: Context) -> ClusterScope:
        machines = await self._office.machines_of(context.resource.id)
        return ClusterScope(context, wire.resource_message(context.resource), machines)

    def steps(self, scope: ClusterScope) -> Sequence[Step]:
        return (
            Step("Make the file system", self._make_filesystem),
            Step("Rent machines", self._rent),
            Step("Give surplus machines back", self._give_back),
        )

    def delete_steps(self, scope: ClusterScope) -> Sequence[Step]:
        return (Step("Give all machines back", self._give_all_back),)

    def status(self, scope: ClusterScope, result: ReconcileResult) -> ReconcileResult:
        state = "READY" if result.is_done else "ERROR" if result.error else "UPDATING"
        if scope.context.resource.deleted_at is not None:
            state = "DELETING"
        status = scope.cluster.status
        status.state = contract.enum("neocloud.slurm.v1.ClusterStatus.State").Value(state)
        return result.with_status(status, state, resync_seconds=600)

    async def _make_filesystem(self, scope: ClusterScope) -> None:
        row = scope.context.resource
        spec = FilesystemSpec(size_gibibytes=scope.cluster.spec.shared_root.size_gibibytes)
        name = f"{row.name}-root"
        child = await scope.context.ensure_child(
            FILESYSTEM, name=name, parent_id=row.parent_id, spec=spec, labels={}
        )
        if child.state != "READY":
            raise RetryLater(f"{child.id} is {child.state}", delay_seconds=30)

    async def _rent(self, scope: ClusterScope) -> None:
        for _ in range(scope.wanted - len(scope.machines)):
            await self._office.rent(scope.context.resource.id)

    async def _give_back(self, scope: ClusterScope) -> None:
        for machine in scope.machines[scope.wanted :]:
            await self._office.give_back(machine)

    async def _give_all_back(self, scope: ClusterScope) -> None:
        for machine in scope.machines:
            await self._office.give_back(machine)


class FilesystemReconciler:
    kind = FILESYSTEM

    def __init__(self, office: Office) -> None:
        self._office = office

    async def scope(self, context: Context) -> Context:
        return context

    def steps(self, scope: Context) -> Sequence[Step]:
        return (Step("Make the volume", self._make),)

    def delete_steps(self, scope: Context) -> Sequence[Step]:
        return (Step("Remove the volume", self._remove),)

    def status(self, scope: Context, result: ReconcileResult) -> ReconcileResult:
        status = wire.resource_message(scope.resource).status
        state = "READY" if result.is_done else "CREATING"
        status.state = contract.enum("nebius.compute.v1.FilesystemStatus.State").Value(state)
        return result.with_status(status, state)

    async def _make(self, scope: Context) -> None:
        await self._office.make_volume(scope.resource.id)

    async def _remove(self, scope: Context) -> None:
        await self._office.remove_volume(scope.resource.id)


class Requests:
    """The writes of the server for a user's requests."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._numbers = itertools.count()

    async def create(self, name: str = "bank", count: int = 2) -> Resource:
        now = self._clock.now()
        row = Resource(
            id=f"slurmcluster-{name}",
            kind=CLUSTER,
            parent_id=PROJECT,
            name=name,
            created_at=now,
            updated_at=now,
            spec=spec_of(count),
            state="CREATING",
            finalizers=KINDS[0].finalizers,
        )
        operation = self._operation(row, "Create")

        def write(tx) -> None:
            tx.insert(row)
            tx.insert_operation(operation)

        await self._store.write(write)
        return row

    async def scale(self, cluster_id: str, count: int) -> OperationRow:
        def write(tx) -> OperationRow:
            row = tx.get(cluster_id)
            changed = replace(row, spec=spec_of(count), resource_version=row.resource_version + 1)
            tx.update(changed)
            operation = self._operation(changed, "Update")
            tx.insert_operation(operation)
            return operation

        return await self._store.write(write)

    async def delete(self, cluster_id: str) -> OperationRow:
        def write(tx) -> OperationRow:
            row = tx.get(cluster_id)
            operations.abort_unfinished(tx, row.id, self._clock.now(), "Replaced by a Delete.")
            tx.update(replace(row, deleted_at=self._clock.now(), state="DELETING"))
            operation = self._operation(row, "Delete")
            tx.insert_operation(operation)
            return operation

        return await self._store.write(write)

    def _operation(self, row: Resource, verb: str) -> OperationRow:
        return OperationRow(
            id=f"operation-{next(self._numbers)}",
            resource_id=row.id,
            resource_kind=row.kind,
            parent_id=row.parent_id,
            method=f"neocloud.slurm.v1.ClusterService/{verb}",
            description=f"{verb} {row.name}",
            created_by="serviceaccount-e00a",
            created_at=self._clock.now(),
            resource_version=row.resource_version,
            request_id=f"request-{verb.lower()}-{row.name}",
        )


@dataclass
class Cloud:
    """Store, world and clock, from which workers are made."""

    store: Store
    office: Office
    clock: Any
    """A FakeClock, save where real time is the point."""
    requests: Requests

    def worker(self, store: Store | None = None, office: Any = None, **options: Any) -> Worker:
        office = office or self.office
        reconcilers = [ClusterReconciler(office), FilesystemReconciler(office)]
        return Worker(store or self.store, self.clock, reconcilers, kinds=KINDS, **options)

    async def row(self, resource_id: str = "slurmcluster-bank") -> Resource | None:
        return await self.store.read(lambda tx: tx.get(resource_id))

    async def operation(self, operation_id: str = "operation-0") -> OperationRow:
        found = await self.store.read(lambda tx: tx.get_operation(operation_id))
        assert found is not None
        return found

    async def unfinished(self) -> Sequence[OperationRow]:
        return (await self.store.read(lambda tx: tx.list_operations(unfinished=True)))[0]

    async def check(self) -> None:
        """Nothing in the world that no row asks for, and nothing twice."""
        clusters = {row.id: row for row in (await self.store.read(lambda tx: tx.list(CLUSTER)))[0]}
        filesystems = (await self.store.read(lambda tx: tx.list(FILESYSTEM)))[0]
        wanted = {id: count for id, row in clusters.items() if (count := count_of(row))}
        assert Counter(self.office.machines.values()) == wanted
        assert self.office.volumes == {row.id for row in filesystems}
        assert sorted(row.owner_id for row in filesystems) == sorted(clusters)


def spec_of(count: int) -> bytes:
    cluster = Cluster()
    cluster.spec.shared_root.size_gibibytes = 1
    cluster.spec.node_sets.add(name="worker", platform="cpu", preset="2vcpu-4gb", count=count)
    return cluster.spec.SerializeToString(deterministic=True)


def count_of(row: Resource) -> int:
    return sum(node_set.count for node_set in wire.resource_message(row).spec.node_sets)
