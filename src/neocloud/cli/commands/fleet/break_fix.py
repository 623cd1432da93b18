"""`neo fleet break-fix`: ask for a repair of a node, and see what became of it."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from neocloud.cli.commands.fleet.node import SERVICE as NODES
from neocloud.cli.commands.fleet.node import NodeArgument
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ProjectClient, ProjectOption, connect_to_project
from neocloud.client.errors import ClientError
from neocloud.core import contract

SERVICE = "neocloud.fleet.v1.BreakFixService"

app = command_group(
    """Ask for repairs of nodes of your Slurm clusters with --auto-repair; operators for those of all tenants.

Examples:

  neo fleet break-fix request bank/worker-0 replace --reason "slow GPU"
  neo fleet break-fix events bank
"""
)


class Action(StrEnum):
    CORDON = "cordon"
    UNCORDON = "uncordon"
    REPLACE = "replace"
    RETURN = "return-for-maintenance"
    POWER_CYCLE = "power-cycle"
    RESET_GPU = "reset-gpu"


OF_CORDONS = {
    Action.CORDON: " It takes no new jobs until you uncordon it; a running job continues.",
    Action.UNCORDON: " It takes jobs again once it has passed its checks, unless others have drained it.",
}
"""Hints after the action: no ticket is opened for these."""


@app.command()
def request(
    context: typer.Context,
    node: NodeArgument,
    action: Annotated[
        Action,
        typer.Argument(
            help="cordon: no new jobs. uncordon: end your cordon. replace: by a spare, when no job runs. "
            "return-for-maintenance: hand a cordoned node over to the operators. "
            "power-cycle, reset-gpu: not possible for workers that are pods."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; users of the cluster read it in Slurm.")],
    project: ProjectOption = "",
) -> None:
    """Request a repair of a node. An impossible repair is refused with the reason.

    Examples:

      neo fleet break-fix request bank/worker-0 replace --reason "slow GPU"
      neo fleet break-fix request bank/worker-0 cordon --reason "our own tests"
    """
    cluster, _, name = node.partition("/")
    cloud = connect_to_project(context, project)
    cluster_id, suffix = _cluster(cloud, cluster)
    asked = {
        "cluster_id": cluster_id,
        "node": name,
        "action": action.name if action is not Action.RETURN else "RETURN_FOR_MAINTENANCE",
        "reason": reason,
    }
    answer = cloud.client.call(f"{SERVICE}/Request{suffix}", asked)
    ticket = f" Ticket: {answer.ticket}." if answer.ticket else ""
    told = OF_CORDONS.get(action, f"{ticket} See: neo fleet break-fix events {cluster}")
    say(f"{node} is {answer.phase}.{told}")


@app.command()
def events(
    cloud: Cloud,
    cluster: Annotated[str, typer.Argument(help="The cluster, by name or id.")],
    node: Annotated[str, typer.Option(help="Name of a single node, e.g. worker-0.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="Number of the newest events.")] = 100,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show maintenance, repair tickets and retirements of the nodes of a cluster, oldest first.

    Examples:

      neo fleet break-fix events bank
      neo fleet break-fix events bank --node worker-0 --output json
    """
    cluster_id, suffix = _cluster(cloud, cluster)
    wanted = {"cluster_id": cluster_id, "node": node, "limit": limit}
    answer = cloud.client.call(f"{SERVICE}/ListEvents{suffix}", wanted)
    rows = (
        (
            *(f"{contract.to_datetime(each.at):%Y-%m-%d %H:%M:%S}", each.node, _type(each), each.ticket),
            *(each.hardware_id or "-", each.text),
        )
        for each in answer.items
    )
    view = table(["AT, UTC", "NODE", "EVENT", "TICKET", "HARDWARE", "WHAT"], rows)
    show(output, contract.to_document(answer), view, empty="Nothing has broken.")


def _cluster(cloud: ProjectClient, named: str) -> tuple[str, str]:
    """Return the id of a cluster of the project, or else of any tenant, and the end of the verb's name."""
    found = cloud.find_optional(CLUSTERS, named)
    if found is not None:
        return found.metadata.id, ""
    try:
        nodes: list[Any] = list(cloud.client.list_all(f"{NODES}/List"))
    except ClientError as error:
        if error.code != "PERMISSION_DENIED":
            raise
        nodes = []
    for node in nodes:
        if named in (node.cluster_id, node.cluster_name):
            return node.cluster_id, "AsOperator"
    raise ClientError("NOT_FOUND", f"There is no cluster {named!r}", "See: neo slurm cluster list")


def _type(event: Any) -> str:
    return contract.enum_name(event, "type")
