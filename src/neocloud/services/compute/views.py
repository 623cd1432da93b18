"""Fields that are computed when a resource is read: a GPU cluster's members, announced maintenance."""

from datetime import datetime
from typing import Any

from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.compute.v1 import InstanceSpec, InstanceStatus
from neocloud.services.compute.maintenance import active_maintenance
from neocloud.services.compute.types import INSTANCE


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
