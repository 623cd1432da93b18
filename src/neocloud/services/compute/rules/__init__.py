"""What is legal for each kind. Pure: rules see messages and a ResourceReader."""

from neocloud.services.compute.rules.copies import ImageRules, SnapshotRules
from neocloud.services.compute.rules.disk import DiskRules
from neocloud.services.compute.rules.filesystem import FilesystemRules
from neocloud.services.compute.rules.instance import GpuClusterRules, InstanceRules

__all__ = [
    "DiskRules",
    "FilesystemRules",
    "GpuClusterRules",
    "ImageRules",
    "InstanceRules",
    "SnapshotRules",
]
