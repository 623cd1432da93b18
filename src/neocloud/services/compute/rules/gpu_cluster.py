"""What is legal for a GPU cluster: it goes only when no instance is in it."""

from collections.abc import Mapping
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Rules
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.compute.v1 import InstanceSpec
from neocloud.services.compute.resources.instance import INSTANCE


class GpuClusterRules(Rules):
    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"compute.gpucluster.count": 1}

    def check_delete(self, resource: Any, world: ResourceReader) -> None:
        cluster = resource.metadata
        members = [
            row.name or row.id
            for row in world.list(INSTANCE, cluster.parent_id)
            if InstanceSpec.FromString(row.spec).gpu_cluster.id == cluster.id
        ]
        if members:
            raise contract.bad_state(
                cluster.id,
                f"GPU cluster {cluster.name} still holds {', '.join(members[:5])}. Delete them first.",
            )
