"""What a caller may do beyond the standard verbs: a table for each noun."""

from neocloud.core.service import Method
from neocloud.services.compute.api import images, instances, machines, maintenance, platforms, snapshots

METHODS: tuple[Method, ...] = (
    *platforms.METHODS,
    *images.METHODS,
    *snapshots.METHODS,
    *instances.METHODS,
    *machines.METHODS,
    *maintenance.METHODS,
)

__all__ = ["METHODS"]
