"""Compute: platforms, machines, their disks and images, and filesystems.

Usage is in whole seconds, from the state history. A machine is charged from the moment it runs until its stop
is requested; its disks are always charged.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Generic, TypeVar

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.core.store.protocol import HistoryEntry
from neocloud.core.usage import UsageRecord, intervals
from neocloud.messages.nebius.compute.v1 import DiskSpec, FilesystemSpec, InstanceSpec
from neocloud.services.compute import rules, types
from neocloud.services.compute.api import METHODS
from neocloud.services.compute.api.instances import disk_view, gpu_cluster_view, instance_view
from neocloud.services.compute.catalogue import preset
from neocloud.services.compute.public import BucketFilesystems
from neocloud.services.compute.reconcile import reconcilers
from neocloud.services.compute.reconcile.copies import sync_public_images
from neocloud.services.compute.rules.instance import CAPACITY
from neocloud.services.compute.types import (
    DISK,
    FILESYSTEM,
    INSTANCE,
    NAMESPACE_LABEL,
    DiskType,
    FilesystemState,
    FilesystemType,
    InstanceState,
    gib,
    size_bytes,
)
from neocloud.services.storage.public import Filesystems

STORED_STATES = frozenset({"READY", "UPDATING"})
RUNNING_STATES = frozenset({InstanceState.RUNNING, InstanceState.UPDATING})


VolumeSpecT = TypeVar("VolumeSpecT", DiskSpec, FilesystemSpec)


class VolumeMeter(ABC, Generic[VolumeSpecT]):
    """Meters the GiB of a stored volume.

    The filesystem of a cluster has its cluster as a label. It counts only where no account is known to have
    created the volume: tenants set labels, too.
    """

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
                owner_id = stretch.entry.labels.get(NAMESPACE_LABEL, "")
                yield stretch.record(sku=self.sku(spec), units=gib(size_bytes(spec)), owner_id=owner_id)


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


_PROJECT = ("nebius.iam.v1.Container",)

KINDS = (
    Kind(
        message=FILESYSTEM,
        rpc="nebius.compute.v1.FilesystemService",
        id_prefix=types.FILESYSTEM_ID_PREFIX,
        permission="compute.filesystems",
        parent_kinds=_PROJECT,
        rules=rules.FilesystemRules(),
        initial_state=FilesystemState.CREATING,
        is_reconciled=True,
    ),
    Kind(
        message=types.DISK,
        rpc="nebius.compute.v1.DiskService",
        id_prefix=types.DISK_ID_PREFIX,
        permission="compute.disks",
        parent_kinds=_PROJECT,
        rules=rules.DiskRules(),
        initial_state="CREATING",
        is_reconciled=True,
        view=disk_view,
    ),
    Kind(
        message=types.SNAPSHOT,
        rpc="nebius.compute.v1.DiskSnapshotService",
        id_prefix=types.SNAPSHOT_ID_PREFIX,
        permission="compute.diskSnapshots",
        parent_kinds=_PROJECT,
        rules=rules.SnapshotRules(),
        initial_state="CREATING",
        is_reconciled=True,
    ),
    Kind(
        message=types.IMAGE,
        rpc="nebius.compute.v1.ImageService",
        id_prefix=types.IMAGE_ID_PREFIX,
        permission="compute.images",
        parent_kinds=_PROJECT,
        rules=rules.ImageRules(),
        initial_state="CREATING",
        is_reconciled=True,
    ),
    Kind(
        message=types.DISK_EXPORT,
        rpc="neocloud.compute.v1.DiskExportService",
        id_prefix=types.DISK_EXPORT_ID_PREFIX,
        permission="compute.diskExports",
        parent_kinds=_PROJECT,
        verbs=frozenset({"Create", "Get", "GetByName", "List", "Delete"}),
        rules=rules.DiskExportRules(),
        initial_state="CREATING",
        is_reconciled=True,
    ),
    Kind(
        message=types.GPU_CLUSTER,
        rpc="nebius.compute.v1.GpuClusterService",
        id_prefix=types.GPU_CLUSTER_ID_PREFIX,
        permission="compute.gpuClusters",
        parent_kinds=_PROJECT,
        rules=rules.GpuClusterRules(),
        view=gpu_cluster_view,
    ),
    Kind(
        message=types.INSTANCE,
        rpc="nebius.compute.v1.InstanceService",
        id_prefix=types.INSTANCE_ID_PREFIX,
        permission="compute.instances",
        parent_kinds=_PROJECT,
        rules=rules.InstanceRules(),
        initial_state=InstanceState.STARTING,
        stopped_state=InstanceState.STOPPED,
        is_reconciled=True,
        view=instance_view,
    ),
)

SERVICE = Service(
    name="compute",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=reconcilers,
    meters=METERS,
    capacity=CAPACITY,
    provides={Filesystems: lambda dependencies: BucketFilesystems()},
)

__all__ = ["SERVICE", "sync_public_images"]
