"""The attachments of a workload: addresses on its subnet, a security group for its ports, filesystems.

The group opens the declared ports to everything that reaches the subnet, and nothing else.
"""

from collections.abc import Mapping

from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Failed, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.engines.manifest.network_spec import mac_of
from neocloud.messages.nebius.vpc.v1 import (
    AllocationSpec,
    RuleProtocol,
    RuleType,
    SecurityGroupSpec,
    SecurityRuleSpec,
    SubnetSpec,
)
from neocloud.messages.nebius.vpc.v1 import RuleAccessAction as RuleAccess
from neocloud.services.ai.reconcile.scope import WorkloadScope
from neocloud.services.ai.render import InterfaceView, MountView
from neocloud.services.ai.rules import is_read_only, is_udp
from neocloud.services.ai.types import Reason, WorkloadSpec, subnet_group_name
from neocloud.services.compute.public import claim_reference, may_attach
from neocloud.services.compute.types import FilesystemState
from neocloud.services.vpc.public import assign, private_address, public_address
from neocloud.services.vpc.types import (
    ALLOCATION,
    SECURITY_GROUP,
    SECURITY_RULE,
    address_of,
    network_namespace,
)

ANYWHERE = "0.0.0.0/0"
PRIORITY = 500
_USABLE = frozenset({FilesystemState.READY, FilesystemState.UPDATING})


async def find_interface(scope: WorkloadScope) -> InterfaceView:
    """Set the scope's interface and return it. Raises RetryLater until all addresses are assigned."""
    subnet_id = scope.spec.subnet_id
    subnet = await scope.context.get(subnet_id)
    if subnet is None:
        raise Failed(
            Reason.SUBNET_GONE,
            f"Subnet {subnet_id} is gone; delete this and create it again on another subnet.",
        )
    network_id = SubnetSpec.FromString(subnet.spec).network_id
    private = await _allocation(scope, scope.id, private_address(subnet_id))
    public = (
        await _allocation(scope, f"{scope.id}-public", public_address(subnet_id))
        if scope.spec.public_ip
        else None
    )
    group = await _ensure_group(scope, network_id)
    scope.interface = InterfaceView(
        network=network_namespace(network_id),
        subnet=subnet_id,
        address=address_of(private),
        mac=mac_of(scope.id),
        security_groups=(group.id,),
        public_address=address_of(public) if public else "",
    )
    return scope.interface


async def find_filesystems(scope: WorkloadScope) -> None:
    """Set the scope's mounts. Raises RetryLater until all are ready."""
    found: list[MountView] = []
    for volume in scope.spec.volumes:
        row = await scope.context.get(volume.source)
        if row is None or row.state == FilesystemState.ERROR:
            raise Failed(Reason.FILESYSTEM_FAILED, f"Filesystem {volume.source} is gone or has failed.")
        if not may_attach(row, scope.message.metadata.parent_id):
            raise Failed(
                Reason.FILESYSTEM_FAILED,
                f"Filesystem {volume.source} belongs to another resource or project; name one of your own.",
            )
        if row.state not in _USABLE:
            raise RetryLater(
                f"filesystem {row.name or row.id} is {row.state}", delay_seconds=CHILD_POLL_SECONDS
            )
        sub_path = volume.source_path.strip("/")
        found.append(MountView(claim_reference(row), volume.container_path, sub_path, is_read_only(volume)))
    scope.mounts = tuple(found)


async def _allocation(scope: WorkloadScope, name: str, spec: AllocationSpec) -> Resource:
    parent_id = scope.message.metadata.parent_id
    row = await scope.context.ensure_child(ALLOCATION, name=name, parent_id=parent_id, spec=spec, labels={})
    if not address_of(row) or not await assign(scope.context, row.id):
        raise RetryLater(f"allocation {row.id} has no address yet", delay_seconds=CHILD_POLL_SECONDS)
    return row


async def _ensure_group(scope: WorkloadScope, network_id: str) -> Resource:
    group = await scope.context.ensure_child(
        SECURITY_GROUP,
        name=subnet_group_name(scope.id),
        parent_id=scope.message.metadata.parent_id,
        spec=SecurityGroupSpec(network_id=network_id),
        labels={},
    )
    for name, spec in _rules(scope.spec).items():
        await scope.context.ensure_child(SECURITY_RULE, name=name, parent_id=group.id, spec=spec, labels={})
    return group


def _rules(spec: WorkloadSpec) -> Mapping[str, SecurityRuleSpec]:
    """Return the rules by name: all traffic out, and in to each declared port."""
    out = _allow("ANY")
    out.egress.destination_cidrs.append(ANYWHERE)
    rules = {"out": out}
    for protocol, ports in (
        ("TCP", [port.container_port for port in spec.ports if not is_udp(port)]),
        ("UDP", [port.container_port for port in spec.ports if is_udp(port)]),
    ):
        if ports:
            rule = rules[f"{protocol.lower()}-ports"] = _allow(protocol)
            rule.ingress.source_cidrs.append(ANYWHERE)
            rule.ingress.destination_ports.extend(ports)
    return rules


def _allow(protocol: str) -> SecurityRuleSpec:
    return SecurityRuleSpec(
        access=RuleAccess.Value("ALLOW"),
        protocol=RuleProtocol.Value(protocol),
        type=RuleType.Value("STATEFUL"),
        priority=PRIORITY,
    )
