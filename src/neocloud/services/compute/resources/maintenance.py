"""Maintenance events: messages without metadata, so they are no Kind."""

from neocloud.core import contract
from neocloud.services.compute.resources.instance import MAINTENANCE_EVENT

MaintenanceEvent = contract.message(MAINTENANCE_EVENT)
EventSpec = contract.message("nebius.compute.v1.MaintenanceEventSpec")
EventStatus = contract.message("nebius.compute.v1.MaintenanceEventStatus")
ListResponse = contract.message("nebius.compute.v1.ListMaintenanceEventsResponse")
