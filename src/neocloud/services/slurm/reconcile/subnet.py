"""The addresses of a cluster whose nodes are on a subnet: an allocation for each node, and a security group.

The group allows traffic between nodes, ssh from anywhere, and requests of the control plane, which come from
the subnet's gateway. Users may add rules of their own to the group. Addresses of removed nodes are
released.
"""

from collections.abc import Iterable

from neocloud.core.reconcile.reconciler import DAEMON_POLL_SECONDS, Failed, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.engines.manifest.network_spec import mac_of
from neocloud.messages.nebius.vpc.v1 import RuleAccessAction as RuleAccess
from neocloud.messages.nebius.vpc.v1 import (
    RuleProtocol,
    RuleType,
    SecurityGroupSpec,
    SecurityRuleSpec,
    SubnetSpec,
    SubnetStatus,
)
from neocloud.services.slurm.reconcile.scope import Scope
from neocloud.services.slurm.render import REST_PORT, SSH_PORT, InterfaceView
from neocloud.services.slurm.types import Reason
from neocloud.services.vpc.public import assign, private_address
from neocloud.services.vpc.types import (
    ALLOCATION,
    SECURITY_GROUP,
    SECURITY_RULE,
    address_of,
    network_namespace,
    subnet_blocks,
)

ANYWHERE = "0.0.0.0/0"
PRIORITY = 500


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
    network_id = SubnetSpec.FromString(subnet.spec).network_id
    group = await _ensure_group(scope, network_id, SubnetStatus.FromString(subnet.status))
    for name in scope.pod_names:
        allocation = await _ensure_allocation(scope, name, subnet_id)
        scope.interfaces[name] = InterfaceView(
            network=network_namespace(network_id),
            subnet=subnet_id,
            address=address_of(allocation),
            mac=mac_of(allocation.id),
            security_groups=(group.id,),
        )


async def release_addresses(scope: Scope) -> None:
    """Delete the allocations of nodes that are not in the spec and whose pods are gone."""
    if not scope.cluster.spec.subnet_id:
        return
    present = {pod.reference.name for pod in scope.observation.pods}
    kept = {_allocation_name(scope, name) for name in {*scope.pod_names, *present}}
    for row in await scope.context.list(ALLOCATION, scope.cluster.metadata.parent_id):
        if row.owner_id == scope.cluster_id and row.name not in kept and row.deleted_at is None:
            await scope.context.delete_child(row.id)


async def _ensure_allocation(scope: Scope, pod: str, subnet_id: str) -> Resource:
    row = await scope.context.ensure_child(
        ALLOCATION,
        name=_allocation_name(scope, pod),
        parent_id=scope.cluster.metadata.parent_id,
        spec=private_address(subnet_id),
        labels={},
    )
    if not address_of(row) or not await assign(scope.context, row.id):
        raise RetryLater(f"{row.name} has no address yet", delay_seconds=DAEMON_POLL_SECONDS)
    return row


def _allocation_name(scope: Scope, pod: str) -> str:
    return f"{scope.cluster.metadata.name}-{pod}"


async def _ensure_group(scope: Scope, network_id: str, subnet: SubnetStatus) -> Resource:
    metadata = scope.cluster.metadata
    group = await scope.context.ensure_child(
        SECURITY_GROUP,
        name=f"{metadata.name}-nodes",
        parent_id=metadata.parent_id,
        spec=SecurityGroupSpec(network_id=network_id),
        labels={},
    )
    gateways = [f"{block.gateway}/32" for block in subnet_blocks(subnet)]
    for name, spec in _rules(group.id, gateways).items():
        await scope.context.ensure_child(SECURITY_RULE, name=name, parent_id=group.id, spec=spec, labels={})
    return group


def _rules(group_id: str, gateways: Iterable[str]) -> dict[str, SecurityRuleSpec]:
    """Return the rules by name. A rule without sources or destinations allows any."""
    among, out, sign_in, control = (_allow() for _ in range(4))
    among.ingress.source_security_group_id = group_id
    out.egress.destination_cidrs.append(ANYWHERE)
    sign_in.protocol = control.protocol = RuleProtocol.Value("TCP")
    sign_in.ingress.source_cidrs.append(ANYWHERE)
    sign_in.ingress.destination_ports.append(SSH_PORT)
    control.ingress.source_cidrs.extend(gateways)
    control.ingress.destination_ports.append(REST_PORT)
    return {"nodes": among, "out": out, "sign-in": sign_in, "control-plane": control}


def _allow() -> SecurityRuleSpec:
    return SecurityRuleSpec(
        access=RuleAccess.Value("ALLOW"),
        protocol=RuleProtocol.Value("ANY"),
        type=RuleType.Value("STATEFUL"),
        priority=PRIORITY,
    )
