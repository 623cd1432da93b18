"""Custom methods of compute: one table for each file."""

from neocloud.core.service import AnyMethod
from neocloud.services.compute.api import instances, lookups, maintenance

METHODS: tuple[AnyMethod, ...] = (
    *lookups.METHODS,
    *instances.METHODS,
    *maintenance.METHODS,
)

__all__ = ["METHODS"]
