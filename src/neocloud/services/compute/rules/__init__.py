"""What is legal, noun by noun. Pure: sees messages and a ResourceReader."""

from neocloud.services.compute.rules.disk import DiskRules
from neocloud.services.compute.rules.filesystem import FilesystemRules
from neocloud.services.compute.rules.gpu_cluster import GpuClusterRules
from neocloud.services.compute.rules.image import ImageRules
from neocloud.services.compute.rules.instance import InstanceRules
from neocloud.services.compute.rules.snapshot import SnapshotRules

__all__ = [
    "DiskRules",
    "FilesystemRules",
    "GpuClusterRules",
    "ImageRules",
    "InstanceRules",
    "SnapshotRules",
]
