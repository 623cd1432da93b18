"""The addresses of a cluster whose nodes are on a subnet: an allocation for each node, and a security group.

The group allows traffic between nodes, ssh from anywhere, and requests of the control plane, which come from
the subnet's gateway. Users may add rules of their own to the group. Addresses of removed nodes are
released.
"""

from collections.abc import Iterable, Mapping

from neocloud.core.reconcile.reconciler import Failed
from neocloud.engines.manifest.network_spec import mac_of
from neocloud.messages.nebius.vpc.v1 import RuleProtocol, SecurityRuleSpec, SubnetStatus
from neocloud.services.slurm.reconcile.scope import Scope
from neocloud.services.slurm.render import REST_PORT, SSH_PORT
from neocloud.services.slurm.types import Reason
from neocloud.services.vpc.public import (
    ANYWHERE,
    allow,
    interface_of,
    own_address,
    own_security_group,
    private_address,
)
from neocloud.services.vpc.types import ALLOCATION, subnet_blocks


async def find_interfaces(scope: Scope) -> None:
    """Set the scope's interfaces, by pod name; none for a cluster on a network of its own."""
    subnet_id = scope.cluster.spec.subnet_id
    if not subnet_id:
        return
    subnet = await scope.context.get(subnet_id)
    if subnet is None:
        raise Failed(
            Reason.SUBNET_GONE, f"Subnet {subnet_id} is gone; delete the cluster and create a new one."
        )
    metadata = scope.cluster.metadata
    gateways = [f"{block.gateway}/32" for block in subnet_blocks(SubnetStatus.FromString(subnet.status))]
    group = await own_security_group(
        scope.context,
        subnet,
        metadata.parent_id,
        f"{metadata.name}-nodes",
        lambda group_id: _rules(group_id, gateways),
    )
    for pod in scope.pod_names:
        name = _allocation_name(scope, pod)
        private = await own_address(scope.context, metadata.parent_id, name, private_address(subnet_id))
        mac = mac_of(private.id)
        scope.interfaces[pod] = interface_of(subnet, private, None, mac=mac, security_groups=[group.id])


async def release_addresses(scope: Scope) -> None:
    """Delete the allocations of nodes that are not in the spec and whose pods are gone."""
    if not scope.cluster.spec.subnet_id:
        return
    present = {pod.reference.name for pod in scope.observation.pods}
    kept = {_allocation_name(scope, name) for name in {*scope.pod_names, *present}}
    for row in await scope.context.list(ALLOCATION, scope.cluster.metadata.parent_id):
        if row.owner_id == scope.cluster_id and row.name not in kept and row.deleted_at is None:
            await scope.context.delete_child(row.id)


def _allocation_name(scope: Scope, pod: str) -> str:
    return f"{scope.cluster.metadata.name}-{pod}"


def _rules(group_id: str, gateways: Iterable[str]) -> Mapping[str, SecurityRuleSpec]:
    """Return the rules by name. A rule without sources or destinations allows any."""
    among, out, sign_in, control = (allow() for _ in range(4))
    among.ingress.source_security_group_id = group_id
    out.egress.destination_cidrs.append(ANYWHERE)
    sign_in.protocol = control.protocol = RuleProtocol.Value("TCP")
    sign_in.ingress.source_cidrs.append(ANYWHERE)
    sign_in.ingress.destination_ports.append(SSH_PORT)
    control.ingress.source_cidrs.extend(gateways)
    control.ingress.destination_ports.append(REST_PORT)
    return {"nodes": among, "out": out, "sign-in": sign_in, "control-plane": control}
