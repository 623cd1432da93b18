"""What of a resource is worked out when it is read: a GPU cluster's members, announced maintenance."""

from datetime import datetime
from typing import Any

from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.compute.v1 import InstanceSpec, InstanceStatus
from neocloud.messages.nebius.compute.v1 import MaintenanceEventSpec as EventSpec
from neocloud.messages.nebius.compute.v1 import MaintenanceEventStatus as EventStatus
from neocloud.services.compute.resources.instance import INSTANCE, MAINTENANCE_EVENT
from neocloud.services.compute.resources.maintenance import MaintenanceEvent


def gpu_cluster_view(cluster: Any, tx: Transaction, now: datetime) -> None:
    """Its instances, and where each stands in the fabric."""
    for row in tx.list(INSTANCE, parent_id=cluster.metadata.parent_id)[0]:
        if InstanceSpec.FromString(row.spec).gpu_cluster.id != cluster.metadata.id:
            continue
        cluster.status.instances.append(row.id)
        path = InstanceStatus.FromString(row.status).infiniband_topology_path.path
        if path:
            cluster.status.infiniband_topology_path.instances.add(instance_id=row.id, path=path)


def instance_view(instance: Any, tx: Transaction, now: datetime) -> None:
    """The maintenance announced for it."""
    if events := active_maintenance(tx, instance.metadata.id):
        instance.status.maintenance_event_id = events[-1].id


def active_maintenance(tx: Transaction, instance_id: str) -> list[Any]:
    """The instance's maintenance events that are not over, oldest first."""
    events = [
        MaintenanceEvent(
            id=row.id, spec=EventSpec.FromString(row.spec), status=EventStatus.FromString(row.status)
        )
        for row in tx.list(MAINTENANCE_EVENT, parent_id=instance_id)[0]
    ]
    return [event for event in events if not event.status.HasField("finished_at")]
