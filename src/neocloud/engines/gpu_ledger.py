"""The owner of each GPU: the one record for virtual machines, containers and Slurm workers.

Each GPU in use is one reservation of the store, by a key that outlives a reboot. A virtual machine
holds its GPUs by the id of its instance, a pod by its reference. All GPUs of a holder are reserved together
or none.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from neocloud.engines.base import Accelerator, Reference

logger = logging.getLogger(__name__)

GPU_NAMESPACE = "gpus"
_POD = "pod/"

Result = TypeVar("Result")


class Rows(Protocol):
    """The part of a store's transaction that the ledger needs."""

    def reserve(self, namespace: str, value: str, resource_id: str) -> bool: ...

    def reservations(self, namespace: str) -> Mapping[str, str]: ...

    def release(self, namespace: str, value: str) -> None: ...


class Write(Protocol):
    """Runs work in a transaction: `Store.write`."""

    def __call__(self, work: Callable[[Rows], Result], /) -> Awaitable[Result]: ...


class RowsInMemory:
    """For an engine without a control plane, as in tests and builders of images."""

    def __init__(self) -> None:
        self._holders: dict[str, str] = {}

    async def write(self, work: Callable[[Rows], Result]) -> Result:
        return work(self)

    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        return self._holders.setdefault(value, resource_id) == resource_id

    def reservations(self, namespace: str) -> Mapping[str, str]:
        return dict(self._holders)

    def release(self, namespace: str, value: str) -> None:
        self._holders.pop(value, None)


class TooFewGpus(Exception):
    """Fewer GPUs are free than are needed."""

    def __init__(self, free: int) -> None:
        super().__init__(f"{free} GPUs are free")
        self.free = free


class GpusLost(Exception):
    """GPUs of a holder that cannot get others are not among the candidates any more."""

    def __init__(self, keys: Collection[str]) -> None:
        super().__init__(f"GPUs {', '.join(keys)} are gone")
        self.keys = keys


class GpuLedger:
    """The GPUs of this machine that are in use, and their holders."""

    def __init__(self, write: Write | None = None) -> None:
        self._write: Write = write or RowsInMemory().write

    async def acquire(
        self,
        holder: str,
        count: int,
        candidates: Sequence[Accelerator],
        present: Sequence[Accelerator],
        *,
        is_started: bool = False,
    ) -> Sequence[Accelerator]:
        """Return the holder's GPUs: those of the candidates that it has, and as many more as it needs.

        `present` are all GPUs of the machine. One that the holder has and that is no candidate is released;
        where the holder has started with it, GpusLost is raised. Raises TooFewGpus, and reserves nothing,
        when too few are free.
        """

        def acquire(rows: Rows) -> Sequence[Accelerator]:
            held = _renewed(rows, present)
            mine = [each for each in candidates if held.get(each.key) == holder][:count]
            kept = {each.key for each in mine}
            lost = [key for key, other in held.items() if other == holder and key not in kept]
            if lost and is_started:
                raise GpusLost(lost)
            free = [each for each in candidates if each.key not in held]
            if len(mine) + len(free) < count:
                raise TooFewGpus(len(mine) + len(free))
            for key in lost:
                rows.release(GPU_NAMESPACE, key)
            chosen = [*mine, *free[: count - len(mine)]]
            for each in chosen:
                if not rows.reserve(GPU_NAMESPACE, each.key, holder):  # by another server, meanwhile
                    raise TooFewGpus(len(mine) + len(free) - 1)
            return chosen

        return await self._write(acquire)

    async def adopt(self, holder: str, gpus: Sequence[Accelerator]) -> None:
        """Record GPUs that the holder uses already, as after a restored backup; the first holder stays."""

        def adopt(rows: Rows) -> None:
            for each in gpus:
                if not rows.reserve(GPU_NAMESPACE, each.key, holder):
                    other = rows.reservations(GPU_NAMESPACE).get(each.key)
                    logger.warning("GPU %s is used by %s and reserved for %s", each.key, holder, other)

        await self._write(adopt)

    async def holders(self, present: Sequence[Accelerator] = ()) -> Mapping[str, str]:
        """Return the holders by key."""
        return await self._write(lambda rows: _renewed(rows, present))

    async def release(self, *holders: str) -> None:
        """Release all that these hold."""

        def release(rows: Rows) -> None:
            for key, holder in rows.reservations(GPU_NAMESPACE).items():
                if holder in holders:
                    rows.release(GPU_NAMESPACE, key)

        await self._write(release)


def leave_to_pod(rows: Rows, holder: str, pod: Reference) -> Callable[[], None]:
    """Return what to run once the holder is gone: its GPUs are the pod's then, which still runs with them."""
    held = [key for key, each in rows.reservations(GPU_NAMESPACE).items() if each == holder]

    def reserve() -> None:
        for key in held:
            rows.reserve(GPU_NAMESPACE, key, pod_holder(pod))

    return reserve


def pod_holder(pod: Reference) -> str:
    """Return the name by which a pod holds its GPUs."""
    return f"{_POD}{pod.namespace}/{pod.name}"


def pods_among(holders: Collection[str]) -> set[Reference]:
    """Return the pods that these names stand for."""
    parts = (holder.removeprefix(_POD).split("/") for holder in holders if holder.startswith(_POD))
    return {Reference("Pod", namespace, name) for namespace, name in parts}


def _renewed(rows: Rows, present: Sequence[Accelerator]) -> Mapping[str, str]:
    """Return the holders by key.

    Earlier releases recorded a GPU by its number; such a row gets the GPU's key.
    """
    held = dict(rows.reservations(GPU_NAMESPACE))
    keys = {str(each.index): each.key for each in present}
    for value in [value for value in held if value.isdigit() and keys.get(value, value) != value]:
        holder = held.pop(value)
        rows.release(GPU_NAMESPACE, value)
        if rows.reserve(GPU_NAMESPACE, keys[value], holder):
            held[keys[value]] = holder
    return held
