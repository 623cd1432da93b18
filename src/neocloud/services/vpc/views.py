"""What a reader sees beside what is stored: who has an address, who uses a pool or a route table now."""

from datetime import datetime
from typing import Any

from neocloud.core import wire
from neocloud.core.readers import TransactionReader
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.vpc.v1 import AllocationStatus
from neocloud.services.vpc.rules.pools import networks_with
from neocloud.services.vpc.rules.reservations import pool_blocks
from neocloud.services.vpc.rules.routes import subnets_with
from neocloud.services.vpc.rules.subnets import show_surroundings
from neocloud.services.vpc.types import SUBNET, assignment_namespace

_INSTANCE = "nebius.compute.v1.Instance"


def view_allocation(allocation: Any, tx: Transaction, now: datetime) -> None:
    row = tx.get(allocation.metadata.id)
    allocation.status.static = row is None or not row.owner_id
    for holder_id in tx.reservations(assignment_namespace(allocation.metadata.id)).values():
        allocation.status.state = AllocationStatus.State.Value("ASSIGNED")
        interface = allocation.status.assignment.network_interface
        interface.instance_id = holder_id
        interface.name = _interface_name(tx.get(holder_id))
        is_public = allocation.spec.WhichOneof("ip_spec") == "ipv4_public"
        interface.type = interface.Type.Value("PUBLIC" if is_public else "PRIMARY")


def view_subnet(subnet: Any, tx: Transaction, now: datetime) -> None:
    network = tx.get(subnet.spec.network_id)
    if network is not None:
        show_surroundings(subnet, network, TransactionReader(tx, now))


def view_pool(pool: Any, tx: Transaction, now: datetime) -> None:
    reader = TransactionReader(tx, now)
    pool.status.assignment.networks.extend(networks_with(reader, pool))
    holders = sorted(set(tx.reservations(pool_blocks(pool.metadata.id)).values()))
    subnets = [row.id for holder in holders if (row := tx.get(holder)) and row.kind == SUBNET]
    pool.status.assignment.subnets.extend(subnets)


def view_route_table(table: Any, tx: Transaction, now: datetime) -> None:
    table.status.assignment.subnets.extend(subnets_with(TransactionReader(tx, now), table))


def _interface_name(holder: Resource | None) -> str:
    """An instance has one interface here."""
    if holder is None or holder.kind != _INSTANCE:
        return ""
    interfaces = wire.resource_message(holder).spec.network_interfaces
    return interfaces[0].name if interfaces else ""
