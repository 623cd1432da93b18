"""Default resources of a project: a public pool, a network, a subnet. Clients look for a subnet whose name
begins with "default-subnet" and create instances in it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from neocloud.core import contract
from neocloud.core.kind import FINALIZER
from neocloud.core.readers import TransactionReader
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.vpc.v1 import (
    AddressBlockState,
    IpVersion,
    IpVisibility,
    Network,
    NetworkStatus,
    Pool,
    PoolStatus,
    Subnet,
)
from neocloud.services.vpc import types as vpc
from neocloud.services.vpc.rules import NetworkRules, SubnetRules
from neocloud.services.vpc.rules.lookup import OWN_RANGE
from neocloud.services.vpc.rules.networks import PUBLIC_POOL_NAME, row_of

if TYPE_CHECKING:
    from neocloud.settings.settings import Settings

NETWORK_NAME = "default-network"
DEFAULT_PUBLIC_RANGE = "198.18.0.0/16"
"""Set aside for benchmarks (RFC 2544) and routed nowhere on the Internet, so the addresses are reachable from
the host and do not collide with others."""


def create_project_defaults(tx: Transaction, project: Resource, now: datetime, settings: "Settings") -> None:
    """Create the default network of a project. A container without a parent is a tenant and gets nothing."""
    if not project.parent_id or tx.find(vpc.NETWORK, project.id, NETWORK_NAME) is not None:
        return
    public_range = getattr(settings, "public_pool", "") or DEFAULT_PUBLIC_RANGE
    private_range = getattr(settings, "private_range", "")
    if private_range:
        tx.reserve(OWN_RANGE, private_range, OWN_RANGE)
    if tx.find(vpc.POOL, project.id, PUBLIC_POOL_NAME) is None:
        tx.insert(_public_pool(project.id, public_range, now))
    create_network(tx, project.id, NETWORK_NAME, now)


def made_with_project(tx: Transaction, project: Resource) -> Sequence[Resource]:
    """Return the default network of a project with its subnet and public pool. Whatever has an address there
    is in the project, too, and keeps it."""
    network = tx.find(vpc.NETWORK, project.id, NETWORK_NAME)
    pool = tx.find(vpc.POOL, project.id, PUBLIC_POOL_NAME)
    subnet = tx.find(vpc.SUBNET, project.id, _subnet_name(network.id)) if network is not None else None
    return [row for row in (subnet, network, pool) if row is not None]


def create_network(
    tx: Transaction, project_id: str, name: str, now: datetime, labels: dict[str, str] | None = None
) -> Resource:
    """Create a network with its default rows and a subnet. Raises AlreadyExists for a taken name."""
    reader = TransactionReader(tx, now)
    network = Network()
    network.metadata.id = contract.new_id(vpc.NETWORK_ID_PREFIX)
    network.metadata.parent_id = project_id
    network.status.state = NetworkStatus.State.Value("CREATING")
    NetworkRules().complete(network, None, reader)
    row = replace(row_of(network, project_id, name, now), finalizers=(FINALIZER,), labels=labels or {})
    tx.insert(row)
    for companion in NetworkRules().companions(network, reader):
        tx.insert(companion)
    tx.insert(_subnet(network, reader))
    return row


def _subnet(network: Network, reader: TransactionReader) -> Resource:
    subnet = Subnet()
    subnet.metadata.id = contract.new_id(vpc.SUBNET_ID_PREFIX)
    subnet.metadata.parent_id = network.metadata.parent_id
    subnet.spec.network_id = network.metadata.id
    rules = SubnetRules()
    rules.defaults(subnet)
    rules.complete(subnet, None, reader)
    return row_of(subnet, network.metadata.parent_id, _subnet_name(network.metadata.id), reader.now)


def _subnet_name(network_id: str) -> str:
    return f"default-subnet-{network_id.partition('-')[2]}"


def _public_pool(project_id: str, public_range: str, now: datetime) -> Resource:
    pool = Pool()
    pool.spec.version = IpVersion.Value("IPV4")
    pool.spec.visibility = IpVisibility.Value("PUBLIC")
    available = AddressBlockState.Value("AVAILABLE")
    pool.spec.cidrs.add(cidr=public_range, state=available, max_mask_length=32)
    pool.status.state = PoolStatus.State.Value("READY")
    pool.status.cidrs.append(public_range)
    pool.status.scope_id = contract.new_id(vpc.SCOPE_ID_PREFIX)
    return row_of(pool, project_id, PUBLIC_POOL_NAME, now, id_prefix=vpc.POOL_ID_PREFIX)
