"""Give GPUs to VFIO for virtual machines, and return them to their drivers.

A device is recorded before it is taken from its driver, so that it is returned also after a crash. The record
also keeps what NVML said of a GPU, which it cannot say while VFIO has it.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from neocloud.engines.base import Accelerator, EngineError
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.gpus.pci import VFIO_DRIVER, PciBus
from neocloud.engines.podman.layout import read_record, write_record

logger = logging.getLogger(__name__)

_GROUP_DEVICE = re.compile(r"/dev/vfio/([0-9]+)")
_MOST_NAMED = 3


def groups_of(pod: Pod) -> frozenset[str]:
    """Return the IOMMU groups whose devices the pod has."""
    sources = (volume.host_path for volume in pod.volumes)
    paths = (source.path for source in sources if source and source.is_device)
    return frozenset(match[1] for path in paths if (match := _GROUP_DEVICE.fullmatch(path)))


@dataclass(frozen=True)
class Taken:
    """A device that was taken from its driver."""

    group: str
    driver: str
    gpu: Accelerator | None
    """None for another function of a GPU's card."""


class Passthrough:
    """The devices of this machine that VFIO has for us. Its methods block."""

    def __init__(self, pci: PciBus, record: Path, processes: Path = Path("/proc")) -> None:
        """`record`: a file of the engine; `processes` is another folder in tests."""
        self._pci = pci
        self._record = record
        self._processes = processes

    def gpus(self) -> Sequence[Accelerator]:
        """Return the GPUs that VFIO has now, as they were before."""
        taken = self.taken()
        return [
            each.gpu
            for address, each in taken.items()
            if each.gpu and self._pci.driver(address) == VFIO_DRIVER
        ]

    def taken(self) -> Mapping[str, Taken]:
        """Return the devices that were taken, or were about to be, by PCI address."""
        record = read_record(self._record) or {}
        return {address: _taken(each) for address, each in record.items()}

    def take(self, group: str, gpus: Sequence[Accelerator], minors: Mapping[str, int]) -> None:
        """Give the GPUs of a group to VFIO. Raises EngineError with the reason where that is not possible."""
        mine = [each for each in gpus if each.iommu_group == group and each.pci_address]
        if not mine:
            raise EngineError(
                f"There is no GPU in IOMMU group {group} any more; `neo status` shows those there are."
            )
        for gpu in mine:
            if problem := self._pci.obstacle(gpu.pci_address):
                raise EngineError(
                    f"GPU {gpu.pci_address} ({gpu.model}) cannot be passed to a virtual machine: {problem}."
                )
            self._require_unused(gpu, minors.get(gpu.key, -1))
        for gpu in mine:
            for address in self._pci.functions(gpu.pci_address):
                if self._pci.driver(address) == VFIO_DRIVER:
                    continue
                driver = self._pci.driver(address)
                self._note(address, Taken(group, driver, gpu if address == gpu.pci_address else None))
                self._pci.bind(address)
                logger.info(
                    "Device %s of group %s goes from %s to VFIO", address, group, driver or "no driver"
                )

    def restore_drivers(self, kept: Collection[str] = ()) -> None:
        """Return every device that was taken to its driver, except those of some groups.

        One that cannot be returned is logged and tried again the next time.
        """
        for address, taken in self.taken().items():
            if taken.group not in kept and self._restore(address, taken):
                self._note(address, None)

    def restore_drivers_of(self, taken: Mapping[str, Taken]) -> None:
        """Return these devices to their drivers without a record, as when the state folder is removed."""
        for address, each in taken.items():
            self._restore(address, each)

    def _restore(self, address: str, taken: Taken) -> bool:
        """Return whether VFIO has the device no more."""
        try:
            self._pci.unbind(address)
        except EngineError as error:
            logger.warning("Device %s is not returned to %s: %s", address, taken.driver or "a driver", error)
            return False
        driver = self._pci.driver(address)
        if taken.driver and driver != taken.driver:
            logger.warning("Device %s has driver %s and had %s", address, driver or "none", taken.driver)
        logger.info("Device %s is returned to %s", address, driver or "no driver")
        return driver != VFIO_DRIVER

    def _require_unused(self, gpu: Accelerator, minor: int) -> None:
        """Raise EngineError while a process has the GPU open: its driver would wait for it without end."""
        if minor < 0 or self._pci.driver(gpu.pci_address) == VFIO_DRIVER:
            return
        users = list(self._users(f"/dev/nvidia{minor}"))
        if users:
            raise EngineError(
                f"GPU {gpu.pci_address} ({gpu.model}) is in use on this host by "
                f"{', '.join(users[:_MOST_NAMED])}; end that, e.g. by `systemctl stop nvidia-persistenced`."
            )

    def _users(self, device: str) -> Iterator[str]:
        for process in self._processes.glob("[0-9]*"):
            with suppress(OSError):
                if any(_opens(link, device) for link in (process / "fd").iterdir()):
                    yield f"{(process / 'comm').read_text().strip()} (process {process.name})"

    def _note(self, address: str, taken: Taken | None) -> None:
        record = dict(read_record(self._record) or {})
        record.pop(address, None)
        if taken is not None:
            record[address] = asdict(taken)
        write_record(self._record, record)


def _opens(link: Path, device: str) -> bool:
    with suppress(OSError):
        return str(link.readlink()) == device
    return False


def _taken(record: Mapping[str, Any]) -> Taken:
    gpu: Mapping[str, Any] = record.get("gpu") or {}
    known = {each.name: gpu[each.name] for each in fields(Accelerator) if each.name in gpu}
    return Taken(str(record["group"]), str(record["driver"]), Accelerator(**known) if known else None)
