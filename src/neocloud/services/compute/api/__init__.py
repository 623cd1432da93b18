"""Custom methods of compute: one table for each resource."""

from neocloud.core.service import Method
from neocloud.services.compute.api import instances, machines, maintenance, platforms, storage

METHODS: tuple[Method, ...] = (
    *platforms.METHODS,
    *storage.METHODS,
    *instances.METHODS,
    *machines.METHODS,
    *maintenance.METHODS,
)

__all__ = ["METHODS"]
