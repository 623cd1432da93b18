# pyright: strict
"""The pools of workers that the fleet controller watches, one for each node set that is not elastic."""

from neocloud.messages.neocloud.fleet.v1 import NodePoolSpec
from neocloud.services.slurm.public import NODE_POOL
from neocloud.services.slurm.reconcile.scope import ClusterScope


async def keep_pools(scope: ClusterScope) -> None:
    """Create, change and delete pools as the spec says."""
    metadata, spec = scope.cluster.metadata, scope.cluster.spec
    wanted = {
        f"{metadata.id}-{each.name}": NodePoolSpec(
            cluster_id=metadata.id, node_set=each.name, wanted=each.count - each.spare_count
        )
        for each in spec.node_sets
        if spec.auto_repair and not each.HasField("elastic")
    }
    for row in await scope.context.list(NODE_POOL, metadata.parent_id):
        if row.owner_id == metadata.id and row.deleted_at is None and row.name not in wanted:
            await scope.context.delete_child(row.id)
    for name, pool in wanted.items():
        row = await scope.context.ensure_child(
            NODE_POOL, name=name, parent_id=metadata.parent_id, spec=pool, labels={}
        )
        scope.pools.add(row.id)
