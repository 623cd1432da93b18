"""Find the hosts and cluster nodes that commands name."""

from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.client.connection import Client
from neocloud.client.errors import ClientError

if TYPE_CHECKING:
    from neocloud.messages.neocloud.fleet.v1 import Node

SERVICE = "neocloud.fleet.v1.NodeService"
NODE_HELP = "A worker, as CLUSTER/NODE with the cluster's name or id, or the name of a host."
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help=NODE_HELP)]


def find(client: Client, named: str) -> "Node":
    """Return the node of this name. Raises ClientError."""
    cluster, _, name = named.rpartition("/")
    for node in client.list_all(f"{SERVICE}/List"):
        if cluster in (node.cluster_id, node.cluster_name) and node.name == name:
            return node
    raise ClientError(
        "NOT_FOUND",
        f"There is no node {named!r}",
        "Write CLUSTER/NODE, or the name of a host, as they are in: neo fleet node list",
    )


def cluster_id_of(client: Client, named: str) -> str:
    """Return the id of a cluster with nodes that are watched, by its name or id. Raises ClientError."""
    for node in client.list_all(f"{SERVICE}/List"):
        if named in (node.cluster_id, node.cluster_name):
            return node.cluster_id
    raise ClientError("NOT_FOUND", f"No nodes of a cluster {named!r} are watched", "See: neo fleet node list")


def reasons(node: "Node") -> list[str]:
    """Return why a node is drained, in the words of each who holds it; of the controller, what it found."""
    last = node.last_incident if node.HasField("last_incident") else None
    return [
        last.reason if last is not None and last.evidence == hold.evidence else hold.evidence
        for hold in node.holds
    ]


def waits_for(node: "Node") -> str:
    """Return what the controller waits for; "" where that is the end of a drain, which has its own reason."""
    return "" if node.held.startswith("drained by ") else node.held


def is_host(node: "Node") -> bool:
    return type(node).Kind.Name(node.kind) == "HOST"


def name_of(node: "Node") -> str:
    return place_of(node.cluster_name or node.cluster_id, node.name)


def place_of(cluster: str, node: str) -> str:
    """Return a node as commands name it: hosts are in no cluster."""
    return f"{cluster}/{node}" if cluster else node
