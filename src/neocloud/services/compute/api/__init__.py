"""Custom methods of compute: one table for each file."""

from neocloud.core.service import Method
from neocloud.services.compute.api import instances, lookups, maintenance

METHODS: tuple[Method, ...] = (
    *lookups.METHODS,
    *instances.METHODS,
    *maintenance.METHODS,
)

__all__ = ["METHODS"]
