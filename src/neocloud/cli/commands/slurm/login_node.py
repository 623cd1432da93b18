"""`neo slurm login`: the login nodes of a cluster. One that is drained gets no new sessions."""

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.slurm.watch import watch_operation
from neocloud.cli.lazy import command_group
from neocloud.cli.output import counted, say
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument, ProjectClient, closest_names
from neocloud.cli.resources.viewed import ListView, list_in_cluster
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import Cluster, LoginNodeStatus

NodeArgument = Annotated[str, typer.Argument(help="Name of the login node, e.g. login-1.")]
WaitOption = Annotated[
    float, typer.Option("--wait", help="Seconds to wait until the last session on the node has ended.")
]
POLL_SECONDS = 1.0
SETTLE_SECONDS = 5.0
"""A session that began while the balancer was being set is counted after this time."""

app = command_group(
    """Login nodes of a cluster: their state, and which of them get new sessions.

Examples:

  neo slurm login list lab
  neo slurm login drain lab login-1 --wait 3600
  neo slurm cluster scale lab --login-nodes 1
"""
)


def _document(node: "LoginNodeStatus") -> dict[str, object]:
    return {
        "name": node.name,
        "ready": node.ready,
        "drained": node.drained,
        "sessions": _sessions(node),
        "restarts": node.restarts,
        "message": node.message,
    }


def _sessions(node: "LoginNodeStatus") -> int | None:
    return node.sessions if node.drained and node.sessions >= 0 else None


list_in_cluster(
    app,
    lambda cluster: [node for node in cluster.status.login.nodes if node.name.startswith("login-")],
    ListView(
        {
            "NAME": lambda node: node.name,
            "READY": lambda node: "yes" if node.ready else "no",
            "NEW SESSIONS": lambda node: "drained" if node.drained else "open",
            "SESSIONS": _sessions,
            "RESTARTS": lambda node: node.restarts,
            "NOTE": lambda node: node.message,
        },
        right=["SESSIONS", "RESTARTS"],
        document=_document,
    ),
    "List the login nodes of a cluster. Sessions are counted on those that are drained."
    "\n\nExample:\n\n  neo slurm login list lab",
)


@app.command()
def drain(cloud: Cloud, cluster: ClusterArgument, node: NodeArgument, wait: WaitOption = 0.0) -> None:
    """Send new sessions to the other login nodes. Those that are open on this one stay.

    With --wait, return when the last one has ended; exit code 1 if it has not by then.

    Examples:

      neo slurm login drain lab login-1
      neo slurm login drain lab login-1 --wait 3600
    """
    found = _cluster_with(cloud, cluster, node)
    if node not in found.spec.login.drained_nodes:
        found.spec.login.drained_nodes.append(node)
        _update(cloud, found, f"Drain {node} of {cluster}")
    echo(f"{node} gets no new sessions.")
    begin = cloud.client.clock()
    status = _status_of(cloud, found, node)
    while wait and cloud.client.clock() < begin + (wait if status.sessions else min(wait, SETTLE_SECONDS)):
        cloud.client.sleep(POLL_SECONDS)
        status = _status_of(cloud, found, node)
    if status.sessions > 0:
        say(f"{counted(status.sessions, 'session')} open on {node}: `neo slurm login list {quote(cluster)}`")
    if wait and status.sessions:
        raise typer.Exit(1)


@app.command()
def resume(cloud: Cloud, cluster: ClusterArgument, node: NodeArgument) -> None:
    """Let a drained login node have new sessions again.

    Example:

      neo slurm login resume lab login-1
    """
    found = _cluster_with(cloud, cluster, node)
    if node in found.spec.login.drained_nodes:
        found.spec.login.drained_nodes.remove(node)
        _update(cloud, found, f"Resume {node} of {cluster}")
    echo(f"{node} gets new sessions.")


def _cluster_with(cloud: ProjectClient, cluster: str, node: str) -> "Cluster":
    found = cloud.find(CLUSTERS, cluster)
    names = [f"login-{index}" for index in range(found.spec.login.count or 1)]
    if node not in names:
        raise ClientError(
            "NOT_FOUND",
            f"Cluster {cluster} has no login node {node!r}",
            closest_names(node, names) or f"It has: {', '.join(names)}",
        )
    return found


def _status_of(cloud: ProjectClient, cluster: "Cluster", node: str) -> "LoginNodeStatus":
    found: Cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": cluster.metadata.id})
    nodes = [each for each in found.status.login.nodes if each.name == node]
    if not nodes:
        raise ClientError("NOT_FOUND", f"{node} has been removed", "")
    return nodes[0]


def _update(cloud: ProjectClient, cluster: "Cluster", title: str) -> None:
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata={"id": cluster.metadata.id, "resource_version": cluster.metadata.resource_version},
        spec=cluster.spec,
    )
    # An empty list is the field's default: it changes only if the mask names it.
    operation = cloud.client.call(f"{CLUSTERS}/Update", request, reset_mask=["spec.login.drained_nodes"])
    watch_operation(cloud, operation, title, is_change=True)
