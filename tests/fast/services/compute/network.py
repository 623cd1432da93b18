"""The part of a network that an instance needs: rows that are there, and addresses given one by one.

The vpc service has its own tests; here it would only be in the way.
"""

from collections.abc import Iterable
from typing import Any

from neocloud.messages.nebius.vpc.v1 import Network, SecurityGroup, Subnet

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.kind import Kind, Rules
from neocloud.core.readers import ResourceReader
from neocloud.core.service import Service
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.engines.manifest import Manifest, Namespace, read_manifest
from neocloud.services.vpc import types as vpc

NETWORK_ID, SUBNET_ID, GROUP_ID = "vpcnetwork-e00test", "vpcsubnet-e00test", "vpcsecuritygroup-e00test"
PRIVATE, PUBLIC = "10.128.0", "203.0.113"


class AllocationRules(Rules):
    def complete(self, new: Any, old: Any | None, reader: ResourceReader) -> None:
        if old is not None:
            return
        kind = new.spec.WhichOneof("ip_spec")
        start = PRIVATE if kind == "ipv4_private" else PUBLIC
        for host in range(4, 250):
            if reader.reserve(kind, f"{start}.{host}", new.metadata.id):
                new.status.details.allocated_cidr = f"{start}.{host}/32"
                new.status.details.subnet_id = SUBNET_ID
                return
        raise contract.not_enough_resources("vpc.addresses", "1", "All addresses are taken.")

    def dependents(self, resource: Any) -> Iterable[str]:
        return ()


def _kind(message: str, rpc: str, prefix: str, **fields: Any) -> Kind:
    name = message.rpartition(".")[2].lower()
    return Kind(
        message=message,
        rpc=f"nebius.vpc.v1.{rpc}",
        id_prefix=prefix,
        permission=f"vpc.{name}s",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset({"Create", "Get", "Delete"}),
        **fields,
    )


SERVICE = Service(
    name="vpc",
    kinds=(
        _kind(vpc.NETWORK, "NetworkService", vpc.NETWORK_ID_PREFIX, initial_state="READY"),
        _kind(vpc.SUBNET, "SubnetService", vpc.SUBNET_ID_PREFIX, initial_state="READY"),
        _kind(
            vpc.SECURITY_GROUP, "SecurityGroupService", vpc.SECURITY_GROUP_ID_PREFIX, initial_state="READY"
        ),
        _kind(
            vpc.ALLOCATION,
            "AllocationService",
            vpc.ALLOCATION_ID_PREFIX,
            initial_state="ALLOCATED",
            rules=AllocationRules(),
        ),
    ),
)


def insert_network(tx: Transaction, parent_id: str, clock: Clock) -> None:
    subnet = Subnet()
    subnet.spec.network_id = NETWORK_ID
    subnet.status.ipv4_private_pools.add(pool_id="vpcpool-e00test", cidrs=[f"{PRIVATE}.0/24"])
    group = SecurityGroup()
    group.spec.network_id = NETWORK_ID
    group.status.default = True
    rows = (
        (NETWORK_ID, vpc.NETWORK, "default-network", Network()),
        (SUBNET_ID, vpc.SUBNET, "default-subnet", subnet),
        (GROUP_ID, vpc.SECURITY_GROUP, "default", group),
    )
    for identifier, kind, name, message in rows:
        tx.insert(
            Resource(
                id=identifier,
                kind=kind,
                parent_id=parent_id,
                name=name,
                created_at=clock.now(),
                updated_at=clock.now(),
                spec=message.spec.SerializeToString(),
                status=message.status.SerializeToString(),
                state="READY",
            )
        )


def engine_network() -> list[Manifest]:
    """Return what the vpc service would have applied."""
    subnet = {"name": SUBNET_ID, "cidrs": [f"{PRIVATE}.0/24"], "gateway": f"{PRIVATE}.1", "routes": []}
    spec = {
        "subnets": [subnet],
        "securityGroups": [{"name": GROUP_ID, "rules": []}],
        "domain": "test.internal",
    }
    network = {
        "apiVersion": "neocloud.dev/v1",
        "kind": "VirtualNetwork",
        "metadata": {"name": NETWORK_ID, "namespace": NETWORK_ID},
        "spec": spec,
    }
    return [Namespace(name=NETWORK_ID), read_manifest(network)]
