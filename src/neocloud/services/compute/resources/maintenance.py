"""Maintenance events: messages without metadata, so they are no Kind."""

from neocloud.core import contract
from neocloud.services.compute.resources.instance import MAINTENANCE_EVENT

MaintenanceEvent = contract.message(MAINTENANCE_EVENT)
