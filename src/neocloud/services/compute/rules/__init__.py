"""Validation rules of each kind. Pure: rules see messages and a ResourceReader."""

from neocloud.services.compute.rules.copies import ImageRules, SnapshotRules
from neocloud.services.compute.rules.disk_exports import DiskExportRules
from neocloud.services.compute.rules.instance import GpuClusterRules, InstanceRules
from neocloud.services.compute.rules.volumes import DiskRules, FilesystemRules

__all__ = [
    "DiskExportRules",
    "DiskRules",
    "FilesystemRules",
    "GpuClusterRules",
    "ImageRules",
    "InstanceRules",
    "SnapshotRules",
]
