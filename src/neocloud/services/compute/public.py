"""The interface for other services: presets, the check that this machine has capacity for a node, and
filesystems. Pure.

Every service that runs nodes checks here first. Memory and GPUs are never promised twice. A vCPU of the
published platforms is one thread; the catalogue says how many vCPUs of a local platform share a core.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from neocloud.core import contract
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import CapacityUses, Rows
from neocloud.engines.base import Capabilities, Reference
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.messages.nebius.compute.v1 import FilesystemSpec, InstanceSpec
from neocloud.services.compute import hosts, maintenance, preemption
from neocloud.services.compute.capacity import (
    Demand,
    Inventory,
    amount,
    amounts,
    available,
    room_text,
    shortages,
)
from neocloud.services.compute.catalogue import Platform, Preset, platforms, preset, preset_violations
from neocloud.services.compute.maintenance import MAINTENANCE, MaintenanceState, of_host
from neocloud.services.compute.types import (
    FILESYSTEM,
    INSTANCE,
    NAMESPACE_LABEL,
    FilesystemState,
    FilesystemType,
    attachment_namespace,
)

wait_for_capacity = preemption.wait_for_capacity
HOST_POOL = hosts.HOST_POOL
known_hosts, drained_hosts, no_host = hosts.known_hosts, hosts.drained_hosts, hosts.no_host
wait_for_host = hosts.wait_for_host
maintenance_state, next_change = maintenance.state_at, maintenance.next_change
announce_maintenance = maintenance.announce
stop_for_maintenance = maintenance.stop
finish_maintenance = maintenance.finish
MOST_HOLDERS = 5
"""How many holders an error names."""

Held = tuple[str, Demand]
"""The id of a holder, and what it holds."""


def check_capacity(
    reader: ResourceReader,
    resource: ResourceMetadata | Resource,
    demanded: Sequence[Demand],
    held: Sequence[Demand],
    *,
    may_wait: bool = False,
    may_preempt: bool = False,
) -> None:
    """Raise NOT_ENOUGH_RESOURCES unless this machine has capacity for the demand beside all others.

    A demand for no more than the resource holds already is met: a resource can always become smaller. The
    error names the holders in the resource's own project only.

    With `may_wait`, the capacity of instances that are stopping counts as free, and the resource's reconciler
    must wait for it (`preemption.wait_for_capacity`). With `may_preempt` too, preemptible instances are
    stopped where that is needed and enough.
    """
    if _count(demanded) - _count(held):
        _refuse_under_maintenance(reader, demanded)
        _refuse_on_drained_hosts(reader, demanded)
    if not needs_capacity_check(reader.inventory, demanded, held):
        return
    uses = reader.provided.get(CapacityUses)
    rows = {kind: reader.list(kind) for kind in uses.kinds}
    others = held_by_others(uses, rows, resource.id)
    if may_wait and reader.inventory is not None:
        inventory, instances = Inventory.of(reader.inventory), rows.get(INSTANCE, ())
        if _is_made_free(
            reader, inventory, resource.id, demanded, others, instances, may_preempt=may_preempt
        ):
            return
    names = {
        row.id: holder_name(row)
        for found in rows.values()
        for row in found
        if row.parent_id == resource.parent_id
    }
    check_fits(reader.inventory, demanded, others, names)


def _refuse_under_maintenance(reader: ResourceReader, demanded: Sequence[Demand]) -> None:
    """Raise NOT_ENOUGH_RESOURCES while the host is under maintenance: nothing more is started on it."""
    for row in reader.list(MAINTENANCE):
        found = of_host(row, reader.now)
        if found is not None and found[1] is MaintenanceState.UNDER_WAY:
            raise contract.not_enough_resources(
                "compute.nodes",
                _shapes(demanded),
                f"The host is under maintenance ({found[0].reason}). Try again when that has ended.",
            )


def _refuse_on_drained_hosts(reader: ResourceReader, demanded: Sequence[Demand]) -> None:
    """Raise NOT_ENOUGH_RESOURCES while no host takes new work."""
    if why := hosts.no_host(reader.list(HOST_POOL)):
        raise contract.not_enough_resources(
            "compute.nodes",
            _shapes(demanded),
            f"{why}. Running workloads continue. Try again when the host takes new work again.",
        )


def _shapes(demanded: Iterable[Demand]) -> str:
    return " + ".join(f"{count} x {shape.platform} {shape.name}" for shape, count in demanded)


def _is_made_free(
    reader: ResourceReader,
    inventory: Inventory,
    resource_id: str,
    demanded: Sequence[Demand],
    others: Sequence[Held],
    instances: Sequence[Resource],
    *,
    may_preempt: bool,
) -> bool:
    """Return whether the demand fits once instances have stopped, which the resource then waits for.

    False also where it fits now, and nothing has to be freed.
    """
    by_id = {row.id: row for row in instances if row.id != resource_id}
    leaving = [row.id for row in by_id.values() if preemption.is_leaving(row)]
    freed = _enough_of(inventory, demanded, others, leaving)
    if freed is None and may_preempt:
        staying = [(holder_id, demand) for holder_id, demand in others if holder_id not in leaving]
        running = [row.id for row in preemption.candidates(by_id.values())]
        preempted = _enough_of(inventory, demanded, staying, running)
        for instance_id in preempted or ():
            row = by_id[instance_id]
            reader.write(partial(preemption.preempt_instance, row=row, now=reader.now))
        freed = [*leaving, *preempted] if preempted else None
    if not freed:
        return False
    preemption.wait_for(reader.reserve, resource_id, freed)
    return True


def _enough_of(
    inventory: Inventory, demanded: Sequence[Demand], held: Sequence[Held], ordered: Sequence[str]
) -> Sequence[str] | None:
    """Return the ids of the fewest holders without which the demand fits, the first ones among equals.

    Empty where it fits beside all; None where it does not fit without any of them.
    """
    by_holder: dict[str, list[Demand]] = {}
    for holder_id, demand in held:
        by_holder.setdefault(holder_id, []).append(demand)
    total = amounts([*demanded, *(demand for _, demand in held)])
    needed = {what: over for what, have in total.items() if (over := have - available(inventory, what)) > 0}
    freeable = [(each, amounts(by_holder[each])) for each in ordered if each in by_holder]
    chosen = preemption.smallest_set(needed, freeable) if needed else ()
    if chosen is None:
        return None
    rest = [demand for holder_id, demand in held if holder_id not in chosen]
    return None if shortages(inventory, [*demanded, *rest]) else chosen


def holder_name(row: Resource) -> str:
    """Return the kind and name of a holder: "Slurm cluster lab"."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", row.kind.rpartition(".")[2]).lower()
    product = "Slurm " if ".slurm." in row.kind else ""
    return f"{product}{words} {row.name or row.id}"


def needs_capacity_check(
    inventory: Capabilities | None, demanded: Sequence[Demand], held: Sequence[Demand]
) -> bool:
    """Return whether this demand has to be compared with what others hold."""
    if inventory is None or not _count(demanded) - _count(held):
        return False
    return not inventory.is_boundless or any(shape.gpus for shape, _ in demanded)


def held_by_others(uses: CapacityUses, rows: Rows, resource_id: str) -> Sequence[Held]:
    """Return what all resources but this one hold of the machine."""
    return [(holder_id, demand) for holder_id, demand in uses.demands(rows) if holder_id != resource_id]


def instance_demands(spec: InstanceSpec) -> list[Demand]:
    """Return what an instance holds."""
    return [] if spec.stopped else [(preset(spec.resources.platform, spec.resources.preset), 1)]


def _count(demands: Iterable[Demand]) -> Counter[Preset]:
    found: Counter[Preset] = Counter()
    for shape, number in demands:
        found[shape] += number
    return found


def check_fits(
    capabilities: Capabilities | None,
    demanded: Iterable[Demand],
    held: Sequence[Held] = (),
    names: Mapping[str, str] | None = None,
) -> None:
    """Raise NOT_ENOUGH_RESOURCES unless the demands fit beside what is held.

    `names` has the holders that the caller may know. Without capabilities nothing is refused here: the engine
    refuses what does not fit.
    """
    if capabilities is None:
        return
    wanted = list(demanded)
    lacking = shortages(Inventory.of(capabilities), [*wanted, *(demand for _, demand in held)])
    if lacking:
        shapes = _shapes(wanted)
        text = f"This machine cannot hold {shapes}: {'; '.join(lacking)}. Request fewer or smaller ones."
        if held:
            text = (
                f"This machine cannot hold {shapes} in addition. "
                f"{room_text(Inventory.of(capabilities), wanted, [demand for _, demand in held])} "
                f"In use: {_in_use(held, names or {})}."
            )
        raise contract.not_enough_resources("compute.nodes", shapes, text)


def _in_use(held: Sequence[Held], names: Mapping[str, str]) -> str:
    """Return each holder with its cores and memory; of other projects, only that they hold something."""
    by_holder: dict[str, list[Demand]] = {}
    for holder_id, demand in held:
        by_holder.setdefault(names.get(holder_id, ""), []).append(demand)
    known = [f"{name} ({amount(demands)})" for name, demands in sorted(by_holder.items()) if name]
    shown = known[:MOST_HOLDERS]
    shown += [f"{len(known) - len(shown)} more"] if len(known) > len(shown) else []
    shown += ["what other projects run"] if "" in by_holder else []
    return ", ".join(shown)


_READERS, _WRITERS = "read-only/", "read-write/"


def filesystem_attachment(instance_id: str, *, is_read_only: bool) -> str:
    """Return the reservation of an attachment; a filesystem's namespace holds one for each resource."""
    return f"{_READERS if is_read_only else _WRITERS}{instance_id}"


def filesystem_holders(reservations: Mapping[str, str], *, is_read_only: bool) -> list[str]:
    """Return the ids of the resources that attach the filesystem in this mode, from its reservations."""
    start = _READERS if is_read_only else _WRITERS
    return sorted(holder for value, holder in reservations.items() if value.startswith(start))


def filesystem_spec(size_gibibytes: int) -> FilesystemSpec:
    """Return the spec of a default filesystem, for services that create one as a child."""
    return FilesystemSpec(size_gibibytes=size_gibibytes, type=FilesystemType.Value("NETWORK_SSD"))


def find_filesystem(reader: ResourceReader, filesystem_id: str, parent_id: str) -> Resource | None:
    """Return the filesystem if a resource of this project may attach it, else None.

    Only the owner may use an owned filesystem, such as the shared root of a Slurm cluster, which holds the
    files and keys of all its users. Rules look up filesystems only with this function.
    """
    row = reader.get(filesystem_id)
    return row if row is not None and row.kind == FILESYSTEM and may_attach(row, parent_id) else None


def may_attach(row: Resource, parent_id: str) -> bool:
    """Return whether a resource of this project may attach the filesystem; checked again at the mount."""
    return row.parent_id == parent_id and not row.owner_id and not row.deleted_at


class BucketFilesystems:
    """The filesystems of this service for filesystem buckets: `storage.public.Filesystems`."""

    def find(self, reader: ResourceReader, filesystem_id: str, parent_id: str) -> Resource | None:
        return find_filesystem(reader, filesystem_id, parent_id)

    def attach(self, reader: ResourceReader, filesystem_id: str, bucket_id: str) -> None:
        attachment = filesystem_attachment(bucket_id, is_read_only=False)
        reader.reserve(attachment_namespace(filesystem_id), attachment, bucket_id)

    def claim(self, filesystem: Resource, parent_id: str) -> Reference | None:
        return claim_reference(filesystem) if may_attach(filesystem, parent_id) else None

    def is_created(self, filesystem: Resource) -> bool:
        return filesystem.state != FilesystemState.CREATING


def claim_name(filesystem_id: str) -> str:
    """Return the name of a filesystem's claim: its id, which is unique and a legal DNS label."""
    return filesystem_id


def claim_namespace(filesystem_id: str, labels: Mapping[str, str], owner_id: str) -> str:
    """Return the namespace of the claim: its own, or for owned filesystems the one that its owner chose."""
    return labels.get(NAMESPACE_LABEL, filesystem_id) if owner_id else filesystem_id


def claim_reference(row: Resource) -> Reference:
    """Return the claim of a filesystem, for pods that mount it."""
    namespace = claim_namespace(row.id, row.labels, row.owner_id)
    return Reference("PersistentVolumeClaim", namespace, claim_name(row.id))


__all__ = [
    "BucketFilesystems",
    "HOST_POOL",
    "drained_hosts",
    "known_hosts",
    "no_host",
    "wait_for_host",
    "MAINTENANCE",
    "MaintenanceState",
    "of_host",
    "maintenance_state",
    "next_change",
    "Demand",
    "Platform",
    "Preset",
    "announce_maintenance",
    "check_capacity",
    "check_fits",
    "claim_name",
    "claim_namespace",
    "claim_reference",
    "filesystem_attachment",
    "filesystem_holders",
    "filesystem_spec",
    "find_filesystem",
    "finish_maintenance",
    "held_by_others",
    "holder_name",
    "instance_demands",
    "may_attach",
    "needs_capacity_check",
    "platforms",
    "preset",
    "preset_violations",
    "shortages",
    "stop_for_maintenance",
    "wait_for_capacity",
]
