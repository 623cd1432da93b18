"""Usage of compute in whole seconds, from the state history: running machines and stored GiB.

A machine is charged from the moment it runs until its stop is requested; its disks are always charged.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Generic, TypeVar

from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.nebius.compute.v1 import DiskSpec, FilesystemSpec, InstanceSpec
from neocloud.services.compute.catalogue import preset
from neocloud.services.compute.types import (
    DISK,
    FILESYSTEM,
    INSTANCE,
    DiskType,
    FilesystemType,
    InstanceState,
    gib,
    size_bytes,
)

STORED_STATES = frozenset({"READY", "UPDATING"})
RUNNING_STATES = frozenset({InstanceState.RUNNING, InstanceState.UPDATING})


VolumeSpecT = TypeVar("VolumeSpecT", DiskSpec, FilesystemSpec)


class VolumeMeter(ABC, Generic[VolumeSpecT]):
    """Meters the GiB of a stored volume."""

    kinds: tuple[str, ...] = ()
    spec: type[VolumeSpecT]

    @abstractmethod
    def sku(self, spec: VolumeSpecT) -> str: ...

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for stretch in intervals(history, start, end):
            if stretch.entry.state in STORED_STATES:
                spec = self.spec.FromString(stretch.entry.spec)
                yield stretch.record(sku=self.sku(spec), units=gib(size_bytes(spec)))


class FilesystemMeter(VolumeMeter[FilesystemSpec]):
    kinds: tuple[str, ...] = (FILESYSTEM,)
    spec = FilesystemSpec

    def sku(self, spec: FilesystemSpec) -> str:
        """ "filesystem.network-ssd" for NETWORK_SSD."""
        return f"filesystem.{_label(FilesystemType.Name(spec.type))}"


class DiskMeter(VolumeMeter[DiskSpec]):
    kinds: tuple[str, ...] = (DISK,)
    spec = DiskSpec

    def sku(self, spec: DiskSpec) -> str:
        """ "disk.network-ssd-io-m3" for NETWORK_SSD_IO_M3."""
        return f"disk.{_label(DiskType.Name(spec.type))}"


class InstanceMeter:
    """Meters the resources of a machine while it runs."""

    kinds: tuple[str, ...] = (INSTANCE,)

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        for stretch in intervals(history, start, end):
            if stretch.entry.state in RUNNING_STATES:
                spec = InstanceSpec.FromString(stretch.entry.spec)
                shape = preset(spec.resources.platform, spec.resources.preset)
                skus = shape.skus(is_preemptible=spec.HasField("preemptible"))
                yield from (stretch.record(sku=sku, units=units) for sku, units in skus.items())


def _label(name: str) -> str:
    return name.lower().replace("_", "-")


METERS = (FilesystemMeter(), DiskMeter(), InstanceMeter())
