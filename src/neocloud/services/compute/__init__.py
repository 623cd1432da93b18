"""Compute: platforms, machines, their disks and images, and filesystems."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.compute import rules, types
from neocloud.services.compute.api import METHODS
from neocloud.services.compute.api.instances import gpu_cluster_view, instance_view
from neocloud.services.compute.meter import METERS
from neocloud.services.compute.reconcile import reconcilers
from neocloud.services.compute.reconcile.copies import sync_public_images
from neocloud.services.compute.rules.instance import CAPACITY
from neocloud.services.compute.types import FILESYSTEM, FilesystemState, InstanceState

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
)

__all__ = ["SERVICE", "sync_public_images"]
