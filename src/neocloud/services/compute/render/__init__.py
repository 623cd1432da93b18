"""Which objects the nouns of compute need. Pure functions from plain views."""

from neocloud.services.compute.render.machine import (
    DiskView,
    GpuView,
    InterfaceView,
    MachineView,
    SharedView,
    identity_secret,
    machine_objects,
    machine_pod,
)
from neocloud.services.compute.render.storage import (
    FilesystemView,
    VolumeSource,
    VolumeView,
    filesystem_objects,
    filesystem_removal,
    volume_objects,
    volume_removal,
)

__all__ = [
    "DiskView",
    "FilesystemView",
    "GpuView",
    "InterfaceView",
    "MachineView",
    "SharedView",
    "VolumeSource",
    "VolumeView",
    "identity_secret",
    "machine_objects",
    "machine_pod",
    "filesystem_removal",
    "filesystem_objects",
    "volume_objects",
    "volume_removal",
]
