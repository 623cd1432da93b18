"""What of a resource is worked out when it is read: who is in a GPU cluster, what is still being copied."""

from datetime import datetime
from typing import Any

from neocloud.core.store.protocol import Transaction
from neocloud.services.compute.resources.instance import INSTANCE, InstanceSpec, InstanceStatus


def gpu_cluster_view(cluster: Any, tx: Transaction, now: datetime) -> None:
    """Its instances, and where each stands in the fabric."""
    for row in tx.list(INSTANCE, parent_id=cluster.metadata.parent_id)[0]:
        if InstanceSpec.FromString(row.spec).gpu_cluster.id != cluster.metadata.id:
            continue
        cluster.status.instances.append(row.id)
        path = InstanceStatus.FromString(row.status).infiniband_topology_path.path
        if path:
            cluster.status.infiniband_topology_path.instances.add(instance_id=row.id, path=path)
