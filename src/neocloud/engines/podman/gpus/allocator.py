"""Give the GPUs of this machine to pods: to containers by CDI, to virtual machines by VFIO.

A pod says how many GPUs it needs and of which type, and the ledger says which are free. A virtual machine's
GPUs were reserved before, by its instance; its pod names the devices of their IOMMU groups.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from neocloud.engines.base import Accelerator, EngineError, Reference
from neocloud.engines.gpu_ledger import GpuLedger, TooFewGpus, pod_holder, pods_among
from neocloud.engines.gpu_types import gpu_type
from neocloud.engines.manifest import GPU, Pod
from neocloud.engines.podman.containers import Row, by_pod
from neocloud.engines.podman.gpus import cdi
from neocloud.engines.podman.gpus.discovery import FoundGpus, GpuDiscovery
from neocloud.engines.podman.gpus.owner import GpuOwner
from neocloud.engines.podman.gpus.passthrough import Passthrough, Taken, groups_of
from neocloud.engines.podman.gpus.pci import PciBus

logger = logging.getLogger(__name__)

Rows = Callable[[], Awaitable[Sequence[Row]]]


class GpuAllocator:
    """The GPUs of this machine, and the pods that have them."""

    def __init__(
        self,
        discovery: GpuDiscovery,
        passthrough: Passthrough,
        *,
        owner: GpuOwner | None = None,
        cdi_folders: Sequence[Path] = cdi.FOLDERS,
    ) -> None:
        self._discovery = discovery
        self._passthrough = passthrough
        self._owner = owner
        self._cdi_folders = cdi_folders
        self._ledger = GpuLedger()
        self._creating: set[Reference] = set()
        self._binding = asyncio.Lock()

    @classmethod
    def of(cls, record: Path, home: Path) -> "GpuAllocator":
        """Return that of the machine on which this runs, for the cloud in `home`.

        `record` is a file of its engine.
        """
        pci, owner = PciBus(), GpuOwner(home)
        passthrough = Passthrough(pci, record)
        return cls(GpuDiscovery(pci, passthrough.gpus, owner=owner), passthrough, owner=owner)

    async def find(self) -> FoundGpus:
        """Return the GPUs of this machine, and warnings about them."""
        found = await self._discovery.find()
        if not found.minors or cdi.has_specs(self._cdi_folders):
            return found
        warning = f"GPUs are here, but containers cannot get them yet: run `{cdi.GENERATE}`."
        return FoundGpus(found.accelerators, (*found.warnings, warning), found.minors)

    def close(self) -> None:
        self._discovery.close()

    async def keep_in(self, ledger: GpuLedger, list_rows: Rows) -> None:
        """Use this ledger from now on, and record in it what the containers that exist have."""
        self._ledger = ledger
        rows = await list_rows()
        labels = {pod: _keys(found) for pod, found in by_pod(rows).items() if _keys(found)}
        if not labels and not pods_among((await ledger.holders()).values()):
            return
        present = (await self._discovery.find(is_fresh=True)).accelerators
        numbers = {str(each.index): each for each in present}
        known = {each.key: each for each in present}
        for pod, keys in labels.items():
            used = [each for key in keys if (each := known.get(key) or numbers.get(key))]
            await ledger.adopt(pod_holder(pod), used)
        await self._release_lost(list_rows, present)

    @contextlib.asynccontextmanager
    async def reserve(
        self, pod: Pod, list_rows: Rows
    ) -> AsyncGenerator[Mapping[str, tuple[cdi.Device, ...]]]:
        """Yield the pod's GPUs by container; they are the pod's until `release`.

        `list_rows` returns the containers that exist.
        """
        counts = gpu_counts(pod)
        if not counts:
            yield {}
            return
        reference = pod.reference
        self._creating.add(reference)
        try:
            yield await self._reserve(pod, counts, list_rows)
        finally:
            self._creating.discard(reference)

    async def release(self, pod: Pod) -> None:
        """Release the GPUs of a pod whose containers have been removed.

        A virtual machine's pod holds some only where its instance was removed by force.
        """
        if uses_gpus(pod):
            await self._ledger.release(pod_holder(pod.reference))

    async def release_unneeded(self, before: Pod, pod: Pod) -> None:
        """Release the GPUs of a pod that is replaced by one without any: `release` looks at that one."""
        if not gpu_counts(pod):
            await self.release(before)

    async def bind(self, pod: Pod) -> None:
        """Give VFIO the IOMMU groups whose devices the pod has. Raises EngineError with the reason."""
        groups = groups_of(pod)
        if not groups:
            return
        async with self._binding:
            found = await self._discovery.find(is_fresh=True)
            for group in sorted(groups):
                await asyncio.to_thread(self._passthrough.take, group, found.accelerators, found.minors)

    async def restore_drivers(self, pods: Iterable[Pod] = ()) -> None:
        """Return the devices that VFIO has, except for those of these pods, to their drivers."""
        kept = frozenset[str]().union(*(groups_of(pod) for pod in pods))
        async with self._binding:
            await asyncio.to_thread(self._passthrough.restore_drivers, kept)

    def taken(self) -> Mapping[str, Taken]:
        """Return the devices that VFIO has for us, by PCI address."""
        return self._passthrough.taken()

    async def restore_drivers_of(self, taken: Mapping[str, Taken]) -> None:
        """Return these devices to their drivers; the record of them is gone."""
        async with self._binding:
            await asyncio.to_thread(self._passthrough.restore_drivers_of, taken)

    async def give_up(self) -> None:
        """Leave the GPUs to other clouds on this host, as when this one is destroyed."""
        if self._owner:
            await asyncio.to_thread(self._owner.give_up)

    async def _reserve(
        self, pod: Pod, counts: Mapping[str, int], list_rows: Rows
    ) -> Mapping[str, tuple[cdi.Device, ...]]:
        found = await self._discovery.find(is_fresh=True)
        fitting = [
            each
            for each in found.accelerators
            if each.key in found.minors and pod.gpu_type in ("", gpu_type(each.model))
        ]
        count, holder = sum(counts.values()), pod_holder(pod.reference)
        present = found.accelerators
        try:
            chosen = await self._ledger.acquire(holder, count, fitting, present)
        except TooFewGpus:
            await self._release_lost(list_rows, present)
            try:
                chosen = await self._ledger.acquire(holder, count, fitting, present)
            except TooFewGpus as error:
                raise EngineError(_shortage(pod, count, len(fitting), error.free)) from error
        rest = iter(self._device(each, found) for each in chosen)
        return {name: tuple(next(rest) for _ in range(number)) for name, number in counts.items()}

    def _device(self, gpu: Accelerator, found: FoundGpus) -> cdi.Device:
        return cdi.Device(gpu.key, cdi.device_name(gpu, found.minors[gpu.key], self._cdi_folders))

    async def _release_lost(self, list_rows: Rows, present: Sequence[Accelerator]) -> None:
        """Release what pods hold that have no containers, as after one was removed by hand.

        The holders, and the pods that are being created, are noted before the containers are listed: a pod
        that gets its containers meanwhile may not be in the list.
        """
        holders = pods_among((await self._ledger.holders(present)).values())
        creating = set(self._creating)
        lost = holders - set(by_pod(await list_rows())) - creating - self._creating
        if lost:
            names = ", ".join(sorted(each.name for each in lost))
            logger.warning("GPUs of pods without containers are released: %s", names)
            await self._ledger.release(*map(pod_holder, lost))


def gpu_counts(pod: Pod) -> dict[str, int]:
    """Return how many GPUs each container needs, of those that need some."""
    counts = {container.name: int(container.limits.get(GPU, 0)) for container in pod.containers}
    return {name: count for name, count in counts.items() if count}


def uses_gpus(pod: Pod) -> bool:
    """Return whether the pod may hold GPUs: by CDI, or by VFIO."""
    return bool(gpu_counts(pod) or groups_of(pod))


def _keys(rows: Collection[Row]) -> list[str]:
    keys = ",".join(row["Labels"].get(cdi.LABEL, "") for row in rows).split(",")
    return [key for key in keys if key]


def _shortage(pod: Pod, count: int, present: int, free: int) -> str:
    kind = f" of type {pod.gpu_type}" if pod.gpu_type else ""
    return (
        f"Pod {pod.name} needs {count} GPU(s){kind}, and of {present} on this machine {free} are free; "
        "request fewer, or stop what has some."
    )
