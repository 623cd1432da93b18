"""The host's GPUs of an instance: reserved when it starts, released when it is stopped.

A GPU is passed to the guest whole, by VFIO. All are reserved in one namespace, so none is passed twice.
"""

from neocloud.core.reconcile.reconciler import Failed
from neocloud.core.store.protocol import Store, Transaction
from neocloud.engines.base import Accelerator, Capabilities
from neocloud.fleet.gpu_models import gpu_type
from neocloud.services.compute.render import GpuView
from neocloud.services.compute.resources.catalogue import Preset
from neocloud.services.compute.resources.instance import InstanceReason

NAMESPACE = "gpus"


async def acquire_gpus(
    store: Store, instance_id: str, preset: Preset, capabilities: Capabilities
) -> tuple[GpuView, ...]:
    """Return the GPUs it holds already and as many more as it needs. Raises Failed when too few are free."""
    fitting = {
        str(each.index): each
        for each in capabilities.accelerators
        if preset.gpu_type in ("", gpu_type(each.model))
    }

    def acquire(tx: Transaction) -> list[Accelerator]:
        held = tx.reservations(NAMESPACE)
        mine = [value for value in fitting if held.get(value) == instance_id]
        for value in fitting:
            if len(mine) < preset.gpus and value not in held and tx.reserve(NAMESPACE, value, instance_id):
                mine.append(value)
        return [fitting[value] for value in mine[: preset.gpus]]

    if not preset.gpus:
        return ()
    found = await store.write(acquire)
    if len(found) < preset.gpus:
        raise Failed(
            InstanceReason.NO_GPU_LEFT,
            f"{preset.gpus} GPUs are needed and {len(found)} are free. Stop a machine that has some.",
        )
    return tuple(GpuView(each.pci_address, each.iommu_group) for each in found if each.pci_address)


async def release_gpus(store: Store, instance_id: str) -> None:
    def release(tx: Transaction) -> None:
        for value, holder in tx.reservations(NAMESPACE).items():
            if holder == instance_id:
                tx.release(NAMESPACE, value)

    if instance_id in (await store.read(lambda tx: tx.reservations(NAMESPACE))).values():
        await store.write(release)
