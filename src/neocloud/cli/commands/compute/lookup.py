"""Find an instance, and the defaults of a new one."""

from typing import Any

from neocloud.cli.commands.slurm.lookup import Place, open_place
from neocloud.client.errors import ClientError
from neocloud.core import contract

SERVICE = "nebius.compute.v1.InstanceService"
MACHINES = "neocloud.compute.v1.MachineService"
STATE = contract.enum("nebius.compute.v1.InstanceStatus.InstanceState")

__all__ = [
    "MACHINES",
    "SERVICE",
    "Place",
    "find_instance",
    "first_subnet",
    "open_place",
    "public_host",
    "state_of",
]


def find_instance(place: Place, name: str) -> Any:
    """Return the instance. Raises ClientError (NOT_FOUND) that lists the known ones."""
    try:
        if contract.is_id(name) and contract.id_prefix(name) == "computeinstance":
            return place.client.call(f"{SERVICE}/Get", {"id": name})
        return place.client.call(f"{SERVICE}/GetByName", {"parent_id": place.project, "name": name})
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
    known = sorted(
        item.metadata.name for item in place.client.list_all(f"{SERVICE}/List", {"parent_id": place.project})
    )
    raise ClientError(
        "NOT_FOUND",
        f"There is no instance {name!r}",
        f"There are: {', '.join(known)}" if known else "Create one with `neo compute instance create NAME`",
    )


def first_subnet(place: Place) -> str:
    """Return the default subnet, or else the oldest."""
    subnets = list(place.client.list_all("nebius.vpc.v1.SubnetService/List", {"parent_id": place.project}))
    if not subnets:
        raise ClientError(
            "FAILED_PRECONDITION", "This project has no subnet", "Create one with `neo vpc subnet create`"
        )
    default = [subnet for subnet in subnets if subnet.metadata.name.startswith("default")]
    return (default or subnets)[0].metadata.id


def state_of(instance: Any) -> str:
    return STATE.Name(instance.status.state)


def public_host(instance: Any) -> str:
    """Return the public address, or else the private one; "" before it is known."""
    for interface in instance.status.network_interfaces:
        address = interface.public_ip_address.address or interface.ip_address.address
        return address.partition("/")[0]
    return ""
