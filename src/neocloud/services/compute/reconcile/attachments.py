"""The addresses, disks, filesystems, GPUs and service account token of an instance.

The interface shows in the status when all of its addresses exist: its own allocations, or those that the spec
names. An address is assigned before it is used, so no two instances answer to the same address. Managed disks
are created, the others must be ready. A GPU is passed to the guest whole, by VFIO, or the instance fails. One
ledger has the GPUs of machines and of containers, so that none is given twice.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from neocloud.core.contract import ApiError
from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Store
from neocloud.engines.base import Accelerator, Capabilities, Engine, KubernetesObject
from neocloud.engines.calls import engine_call
from neocloud.engines.gpu_ledger import (
    GPU_NAMESPACE,
    GpuLedger,
    GpusLost,
    TooFewGpus,
    pod_holder,
    pods_among,
)
from neocloud.engines.gpu_types import gpu_type
from neocloud.engines.manifest import Pod, Secret
from neocloud.engines.manifest.network_spec import mac_of
from neocloud.messages.nebius.compute.v1 import DiskSpec, DiskStatus
from neocloud.messages.nebius.vpc.v1 import AllocationSpec, SubnetSpec, SubnetStatus
from neocloud.services.compute.catalogue import Preset
from neocloud.services.compute.disk_limits import DiskLimits, disk_limits
from neocloud.services.compute.encryption import disk_keys
from neocloud.services.compute.public import claim_reference
from neocloud.services.compute.reconcile.machine_scope import Addresses, MachineScope
from neocloud.services.compute.render import (
    VFIO_FOLDER,
    DiskView,
    GpuView,
    InterfaceView,
    SharedView,
    identity_secret,
)
from neocloud.services.compute.types import (
    DISK,
    INSTANCE_ID_PREFIX,
    DiskState,
    DiskType,
    FilesystemState,
    InstanceReason,
    attached_disks,
    is_read_only,
)
from neocloud.services.iam.types import TokenIssuer
from neocloud.services.vpc.types import (
    ALLOCATION,
    SECURITY_GROUP,
    address_of,
    block_of,
    default_security_group,
    domain_of,
    hold_address,
    interface_of,
    own_address,
    private_address,
    public_address,
    unassign,
)


async def find_addresses(scope: MachineScope) -> Addresses:
    """Find the instance's addresses and set them in the scope. Raises RetryLater until all exist."""
    desired = scope.desired_interface
    subnet = await scope.context.get(desired.subnet_id)
    if subnet is None:
        raise Failed(InstanceReason.ADDRESS_FAILED, f"Subnet {desired.subnet_id} is gone.")
    private = await _allocation(
        scope,
        desired.ip_address.allocation_id,
        f"{scope.id}-{desired.name}",
        private_address(desired.subnet_id),
    )
    public = None
    if desired.HasField("public_ip_address"):
        given_id, spec = desired.public_ip_address.allocation_id, public_address(desired.subnet_id)
        public = await _allocation(scope, given_id, _public_name(scope), spec)
    scope.addresses = Addresses(await _interface(scope, subnet, private, public), private, public)
    return scope.addresses


async def release_public_address(scope: MachineScope) -> None:
    """Release a public address that the spec no longer has, after the machine has stopped answering to it."""
    public = scope.addresses.public if scope.addresses else None
    kept = public.id if public else ""
    for shown in scope.instance.status.network_interfaces:
        held = shown.public_ip_address.allocation_id
        if held and held != kept:
            await unassign(scope.context, held)
    own = await scope.context.find(ALLOCATION, scope.instance.metadata.parent_id, _public_name(scope))
    if own is not None and own.id != kept:
        await scope.context.delete_child(own.id)


async def _allocation(scope: MachineScope, given_id: str, name: str, spec: AllocationSpec) -> Resource:
    if not given_id:
        return await own_address(scope.context, scope.instance.metadata.parent_id, name, spec)
    row = await scope.context.get(given_id)
    if row is None or row.deleted_at:
        raise Failed(InstanceReason.ADDRESS_FAILED, f"Allocation {given_id} is gone; name another.")
    await hold_address(scope.context, row)
    return row


async def _interface(
    scope: MachineScope, subnet: Resource, private: Resource, public: Resource | None
) -> InterfaceView:
    network_id = SubnetSpec.FromString(subnet.spec).network_id
    network = await scope.context.get(network_id)
    address = address_of(private)
    if network is None:
        raise Failed(InstanceReason.ADDRESS_FAILED, f"Network {network_id} is gone.")
    try:
        block = block_of(SubnetStatus.FromString(subnet.status), address)
    except StopIteration:
        raise RetryLater(
            f"subnet {subnet.id} does not hold {address}", delay_seconds=CHILD_POLL_SECONDS
        ) from None
    groups = await _security_groups(scope, network_id)
    return InterfaceView(
        interface_of(subnet, private, public, mac=mac_of(scope.id), security_groups=groups),
        prefix_length=block.prefix_length,
        gateway=str(block.gateway),
        domain=domain_of(network.name),
    )


async def _security_groups(scope: MachineScope, network_id: str) -> tuple[str, ...]:
    named = tuple(group.id for group in scope.desired_interface.security_groups)
    if named:
        return named
    rows = await scope.context.list(SECURITY_GROUP, scope.instance.metadata.parent_id)
    default = default_security_group(rows, network_id)
    return (default.id,) if default else ()


def _public_name(scope: MachineScope) -> str:
    return f"{scope.id}-{scope.desired_interface.name}-public"


_FAILED = frozenset({DiskState.ERROR, DiskState.BROKEN})


async def ensure_disks(scope: MachineScope) -> None:
    """Create the managed disks and set all disks in the scope; a machine that is to run needs them ready."""
    scope.disks = []
    for _, attached in attached_disks(scope.instance.spec):
        if attached.WhichOneof("type") == "managed_disk":
            managed = attached.managed_disk
            row = await scope.context.ensure_child(
                DISK,
                name=managed.name,
                parent_id=scope.instance.metadata.parent_id,
                spec=managed.spec,
                labels=dict(managed.labels),
            )
        else:
            row = await scope.context.get(attached.existing_disk.id)
        if row is None:
            raise Failed(InstanceReason.DISK_FAILED, f"Disk {attached.existing_disk.id} is gone.")
        scope.disks.append(row)
    if scope.should_run:
        await require_ready(scope)


async def find_keys(scope: MachineScope, store: Store) -> None:
    """Set the keys of encrypted disks in the scope. Raises Failed if one is lost."""
    try:
        scope.disk_keys = await disk_keys(store, (row.id for row in scope.disks))
    except Failed as error:
        raise Failed(InstanceReason.DISK_FAILED, str(error)) from error


async def require_ready(scope: MachineScope) -> None:
    """Raise RetryLater until everything attached can be used."""
    for disk in scope.disks:
        if disk.state in _FAILED:
            why = DiskStatus.FromString(disk.status).state_description
            raise Failed(InstanceReason.DISK_FAILED, f"Disk {disk.name or disk.id} has failed: {why}")
        if not DiskStatus.FromString(disk.status).size_bytes:
            raise RetryLater(f"disk {disk.name or disk.id} is {disk.state}", delay_seconds=CHILD_POLL_SECONDS)
    for attached in scope.instance.spec.filesystems:
        row = await scope.context.get(attached.existing_filesystem.id)
        if row is None or row.state == FilesystemState.ERROR:
            raise _filesystem_failed(attached.existing_filesystem.id)
        if row.state == FilesystemState.CREATING:
            raise RetryLater(
                f"filesystem {row.name or row.id} is {row.state}", delay_seconds=CHILD_POLL_SECONDS
            )


def disk_views(scope: MachineScope) -> tuple[DiskView, ...]:
    pairs = zip(attached_disks(scope.instance.spec), scope.disks, strict=True)
    return tuple(
        DiskView(
            row.id,
            device,
            _size(row),
            is_read_only=is_read_only(attached),
            limits=_limits(row),
            key=scope.disk_keys.get(row.id, ""),
        )
        for (device, attached), row in pairs
    )


async def shared_views(scope: MachineScope) -> tuple[SharedView, ...]:
    found: list[SharedView] = []
    for attached in scope.instance.spec.filesystems:
        row = await scope.context.get(attached.existing_filesystem.id)
        if row is None:
            raise _filesystem_failed(attached.existing_filesystem.id)
        found.append(SharedView(claim_reference(row), attached.mount_tag, is_read_only(attached)))
    return tuple(found)


def _filesystem_failed(filesystem_id: str) -> Failed:
    return Failed(InstanceReason.FILESYSTEM_FAILED, f"Filesystem {filesystem_id} is gone or has failed.")


def _limits(disk: Resource) -> DiskLimits | None:
    return disk_limits(DiskType.Name(DiskSpec.FromString(disk.spec).type), _size(disk))


def _size(disk: Resource) -> int:
    return DiskStatus.FromString(disk.status).size_bytes


async def acquire_gpus(
    store: Store, engine: Engine, scope: MachineScope, preset: Preset, capabilities: Capabilities
) -> tuple[GpuView, ...]:
    """Return the GPUs of the instance: those it holds and as many more as it needs.

    Raises Failed when it cannot have them, so that no instance runs, and is charged for, without its GPUs.
    """
    if not preset.gpus:
        return ()
    present = capabilities.accelerators
    of_type = [each for each in present if preset.gpu_type in ("", gpu_type(each.model))]
    usable = [each for each in of_type if not each.passthrough_problem]
    ledger = GpuLedger(store.write)

    async def acquire() -> Sequence[Accelerator]:
        return await ledger.acquire(scope.id, preset.gpus, usable, present, is_started=scope.is_up)

    try:
        try:
            found = await acquire()
        except TooFewGpus:
            await _release_left_behind(ledger, engine)
            found = await acquire()
    except GpusLost as error:
        raise _lost(error.keys, present) from error
    except TooFewGpus as error:
        raise _too_few(preset, of_type, error.free) from error
    return tuple(GpuView(each.pci_address, each.iommu_group) for each in found)


async def _release_left_behind(ledger: GpuLedger, engine: Engine) -> None:
    """Release the GPUs of machines that were removed from the control plane by force and have ended since."""
    for pod in pods_among((await ledger.holders()).values()):
        is_machine = pod.name == pod.namespace and pod.name.startswith(f"{INSTANCE_ID_PREFIX}-")
        if is_machine and (await engine_call(engine.observe(pod.namespace))).pod(pod.name) is None:
            await ledger.release(pod_holder(pod))


def _lost(keys: Collection[str], present: Sequence[Accelerator]) -> Failed:
    """Return the error of a machine that was started with GPUs that are gone; it cannot get others."""
    problems = {each.key: each.passthrough_problem for each in present}
    shown = "; ".join(f"{key} ({problems[key]})" if problems.get(key) else key for key in sorted(keys))
    return Failed(
        InstanceReason.GPU_LOST,
        f"This machine cannot use its GPU any more: {shown}. Stop the machine and start it, so that it gets "
        "another one, or restart the host if it needs that one.",
    )


def _too_few(preset: Preset, of_type: Sequence[Accelerator], free: int) -> Failed:
    problems = {each.passthrough_problem: each for each in of_type if each.passthrough_problem}
    if problems:
        reasons = "; ".join(
            f"{each.model} {each.pci_address or each.index}: {problem}" for problem, each in problems.items()
        )
        return Failed(
            InstanceReason.GPU_NOT_PASSABLE,
            f"{preset.gpus} GPUs are needed, and of those here {free} are free and can be passed to a "
            f"virtual machine. {reasons}.",
        )
    return Failed(
        InstanceReason.NO_GPU_LEFT,
        f"{preset.gpus} GPUs are needed and {free} are free. Stop a machine that has some.",
    )


def lacks_gpus(pod_spec: KubernetesObject, rendered: Pod) -> bool:
    """Return whether a pod with this spec was made without the devices of the machine's GPUs."""
    return bool(_passed(rendered.spec()) - _passed(pod_spec))


def runs_without_gpus() -> Failed:
    return Failed(
        InstanceReason.GPU_NOT_PASSED,
        "This machine runs without its GPUs: it was started before they could be passed to it. Stop it and "
        "start it.",
    )


def _passed(pod_spec: KubernetesObject) -> set[str]:
    """Return the devices of IOMMU groups in the spec of a pod."""
    paths = (volume.get("hostPath", {}).get("path", "") for volume in pod_spec.get("volumes", ()))
    return {path for path in paths if path.startswith(VFIO_FOLDER)}


async def release_gpus(store: Store, instance_id: str) -> None:
    if instance_id in (await store.read(lambda tx: tx.reservations(GPU_NAMESPACE))).values():
        await GpuLedger(store.write).release(instance_id)


LIFETIME = timedelta(hours=1)
RENEW_BEFORE = timedelta(minutes=20)


class IdentityTokens:
    """Tokens of service accounts by instance, renewed while it runs and kept in memory only."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._issue = dependencies.provided.find(TokenIssuer)
        self._clock = dependencies.clock
        self._held: dict[str, tuple[str, datetime]] = {}

    async def objects(self, scope: MachineScope) -> Sequence[Secret]:
        account_id = scope.instance.spec.service_account_id
        if not account_id or self._issue is None:
            return ()
        held = self._held.get(scope.id)
        if held is None or held[1] - self._clock.now() < RENEW_BEFORE:
            try:
                held = self._held[scope.id] = await self._issue(account_id, LIFETIME)
            except ApiError as error:
                raise Failed(InstanceReason.IDENTITY_FAILED, error.message) from error
        token, expires_at = held
        return [identity_secret(scope.id, token, expires_at.isoformat().replace("+00:00", "Z"))]
