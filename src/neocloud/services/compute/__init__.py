"""Compute: platforms, machines, their disks and images, and filesystems."""

from neocloud.core.kind import Kind
from neocloud.core.service import Service
from neocloud.services.compute.api import METHODS
from neocloud.services.compute.meter import METERS
from neocloud.services.compute.public_images import sync_public_images
from neocloud.services.compute.reconcile import reconcilers
from neocloud.services.compute.resources import FILESYSTEM, FILESYSTEM_ID_PREFIX, FilesystemState
from neocloud.services.compute.resources.disk import (
    DISK,
    DISK_ID_PREFIX,
    IMAGE,
    IMAGE_ID_PREFIX,
    SNAPSHOT,
    SNAPSHOT_ID_PREFIX,
)
from neocloud.services.compute.resources.instance import (
    GPU_CLUSTER,
    GPU_CLUSTER_ID_PREFIX,
    INSTANCE,
    INSTANCE_ID_PREFIX,
    InstanceState,
)
from neocloud.services.compute.rules import (
    DiskRules,
    FilesystemRules,
    GpuClusterRules,
    ImageRules,
    InstanceRules,
    SnapshotRules,
)
from neocloud.services.compute.rules.instance.rules import CAPACITY
from neocloud.services.compute.views import gpu_cluster_view, instance_view

PROJECT = ("nebius.iam.v1.Container",)

FILESYSTEMS = Kind(
    message=FILESYSTEM,
    rpc="nebius.compute.v1.FilesystemService",
    id_prefix=FILESYSTEM_ID_PREFIX,
    permission="compute.filesystems",
    parent_kinds=PROJECT,
    rules=FilesystemRules(),
    initial_state=FilesystemState.CREATING,
    is_reconciled=True,
)
DISKS = Kind(
    message=DISK,
    rpc="nebius.compute.v1.DiskService",
    id_prefix=DISK_ID_PREFIX,
    permission="compute.disks",
    parent_kinds=PROJECT,
    rules=DiskRules(),
    initial_state="CREATING",
    is_reconciled=True,
)
SNAPSHOTS = Kind(
    message=SNAPSHOT,
    rpc="nebius.compute.v1.DiskSnapshotService",
    id_prefix=SNAPSHOT_ID_PREFIX,
    permission="compute.diskSnapshots",
    parent_kinds=PROJECT,
    rules=SnapshotRules(),
    initial_state="CREATING",
    is_reconciled=True,
)
IMAGES = Kind(
    message=IMAGE,
    rpc="nebius.compute.v1.ImageService",
    id_prefix=IMAGE_ID_PREFIX,
    permission="compute.images",
    parent_kinds=PROJECT,
    rules=ImageRules(),
    initial_state="CREATING",
    is_reconciled=True,
)
GPU_CLUSTERS = Kind(
    message=GPU_CLUSTER,
    rpc="nebius.compute.v1.GpuClusterService",
    id_prefix=GPU_CLUSTER_ID_PREFIX,
    permission="compute.gpuClusters",
    parent_kinds=PROJECT,
    rules=GpuClusterRules(),
    view=gpu_cluster_view,
)
INSTANCES = Kind(
    message=INSTANCE,
    rpc="nebius.compute.v1.InstanceService",
    id_prefix=INSTANCE_ID_PREFIX,
    permission="compute.instances",
    parent_kinds=PROJECT,
    rules=InstanceRules(),
    initial_state=InstanceState.STARTING,
    stopped_state=InstanceState.STOPPED,
    is_reconciled=True,
    view=instance_view,
)

SERVICE = Service(
    name="compute",
    kinds=(FILESYSTEMS, DISKS, SNAPSHOTS, IMAGES, GPU_CLUSTERS, INSTANCES),
    methods=METHODS,
    reconcilers=reconcilers,
    meters=METERS,
    capacity=CAPACITY,
)

__all__ = ["SERVICE", "sync_public_images"]
