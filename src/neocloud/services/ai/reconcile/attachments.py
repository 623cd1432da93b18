"""The attachments of a workload: addresses on its subnet, a security group for its ports, filesystems.

The group opens the declared ports to everything that reaches the subnet, and nothing else.
"""

from collections.abc import Mapping

from neocloud.core.reconcile.reconciler import CHILD_POLL_SECONDS, Failed, RetryLater
from neocloud.engines.manifest import Interface
from neocloud.engines.manifest.network_spec import mac_of
from neocloud.messages.nebius.vpc.v1 import SecurityRuleSpec
from neocloud.services.ai.reconcile.scope import WorkloadScope
from neocloud.services.ai.render import MountView
from neocloud.services.ai.rules import is_read_only, is_udp
from neocloud.services.ai.types import Reason, WorkloadSpec, subnet_group_name
from neocloud.services.compute.public import claim_reference, may_attach
from neocloud.services.compute.types import FilesystemState
from neocloud.services.vpc.public import (
    ANYWHERE,
    allow,
    interface_of,
    own_address,
    own_security_group,
    private_address,
    public_address,
)

_USABLE = frozenset({FilesystemState.READY, FilesystemState.UPDATING})


async def find_interface(scope: WorkloadScope) -> Interface:
    """Set the scope's interface and return it. Raises RetryLater until all addresses are assigned."""
    subnet_id, parent_id = scope.spec.subnet_id, scope.message.metadata.parent_id
    subnet = await scope.context.get(subnet_id)
    if subnet is None:
        raise Failed(
            Reason.SUBNET_GONE,
            f"Subnet {subnet_id} is gone; delete this and create it again on another subnet.",
        )
    private = await own_address(scope.context, parent_id, scope.id, private_address(subnet_id))
    public = None
    if scope.spec.public_ip:
        spec = public_address(subnet_id)
        public = await own_address(scope.context, parent_id, f"{scope.id}-public", spec)
    name = subnet_group_name(scope.id)
    group = await own_security_group(scope.context, subnet, parent_id, name, lambda _: _rules(scope.spec))
    scope.interface = interface_of(subnet, private, public, mac=mac_of(scope.id), security_groups=[group.id])
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


def _rules(spec: WorkloadSpec) -> Mapping[str, SecurityRuleSpec]:
    """Return the rules by name: all traffic out, and in to each declared port."""
    out = allow()
    out.egress.destination_cidrs.append(ANYWHERE)
    rules = {"out": out}
    for protocol, ports in (
        ("TCP", [port.container_port for port in spec.ports if not is_udp(port)]),
        ("UDP", [port.container_port for port in spec.ports if is_udp(port)]),
    ):
        if ports:
            rule = rules[f"{protocol.lower()}-ports"] = allow(protocol)
            rule.ingress.source_cidrs.append(ANYWHERE)
            rule.ingress.destination_ports.extend(ports)
    return rules
