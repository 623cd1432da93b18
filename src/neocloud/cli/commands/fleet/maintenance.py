"""`neo fleet maintenance`: windows for work on nodes, which users see in Slurm before they begin."""

from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.billing import parse_date
from neocloud.cli.commands.fleet.node import SERVICE as NODES
from neocloud.cli.commands.fleet.node_lookup import cluster_id_of
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, YesOption, confirm, say, show, table
from neocloud.cli.resources.lookup import Connected, CurrentProfile, tenant_id_of
from neocloud.cli.target import profile_of
from neocloud.client.connection import Client, connect
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from neocloud.messages.neocloud.fleet.v1 import Node

SERVICE = "neocloud.fleet.v1.MaintenanceWindowService"

app = command_group(
    """Maintenance windows of workers and hosts, for operators of the cloud.

Until a window begins, jobs that would not end before it do not start on its nodes. Then the nodes take no
jobs; those that run are not ended. After it, the nodes are verified and return.

Examples:

  neo fleet maintenance create bank --from 2026-12-01T22:00 --to 2026-12-02T02:00 --reason "New firmware"
  neo fleet maintenance list
  neo fleet maintenance delete fleetwindow-e00abc
"""
)


@app.command()
def create(
    context: typer.Context,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Start, UTC without a zone.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="End, UTC without a zone.")],
    reason: Annotated[str, typer.Option(help="What is done; users read it in Slurm.")],
    cluster: Annotated[
        str, typer.Argument(help="The cluster, by name or id, of any tenant; leave it out with --host.")
    ] = "",
    host: Annotated[str, typer.Option(help="A host, with all that is on it, instead of a cluster.")] = "",
    node: Annotated[
        list[str] | None,
        typer.Option(help="A worker, e.g. worker-0; repeat it. Default: all."),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Announce a window for the workers of a cluster, for some of them, or for a host. It cannot be changed.

    While a host has one, no machine, replica or cluster is started there, and its workers take no new jobs.
    Nothing that runs is ended.

    Examples:

      neo fleet maintenance create bank --from 2026-12-01T22:00 --to 2026-12-02T02:00 --reason "New firmware"
      neo fleet maintenance create bank --node worker-0 --from 2026-12-01 --to 2026-12-02 --reason Fan
      neo fleet maintenance create --host gpu-host-1 --from 2026-12-01 --to 2026-12-02 --reason "New driver"
    """
    if bool(cluster) is bool(host):
        raise ClientError(
            "INVALID_ARGUMENT", "Name a cluster, or a host with --host", "See: neo fleet node list"
        )
    profile = profile_of(context)
    with connect(profile) as client:
        spec = {
            "cluster_id": cluster_id_of(client, cluster) if cluster else "",
            "host": host,
            "nodes": node or [],
            "start_at": parse_date(start),
            "end_at": parse_date(end),
            "reason": reason,
        }
        metadata = {"parent_id": tenant_id_of(client, profile, "")}
        operation = client.call(f"{SERVICE}/Create", {"metadata": metadata, "spec": spec})
        made = client.call(f"{SERVICE}/Get", {"id": operation.resource_id})
    if output is Format.TABLE:
        window = made.metadata.id
        say(f"Announced as {window}. End or cancel it: neo fleet maintenance delete {window}")
    else:
        show(output, contract.to_document(made), table([], []))


@app.command("list")
def list_windows(client: Connected, profile: CurrentProfile, output: OutputOption = Format.TABLE) -> None:
    """List windows, also those that are over.

    Examples:

      neo fleet maintenance list
    """
    parent = {"parent_id": tenant_id_of(client, profile, "")}
    windows = list(client.list_all(f"{SERVICE}/List", parent))
    names = {each.cluster_id: each.cluster_name for each in _nodes(client)} if windows else {}
    rows = (
        (
            each.metadata.id,
            each.spec.host or names.get(each.spec.cluster_id) or each.spec.cluster_id,
            ", ".join(each.spec.nodes) or "all",
            contract.enum_name(each.status, "state"),
            f"{_time(each.spec.start_at)} to {_time(each.spec.end_at)}",
            each.spec.reason,
        )
        for each in windows
    )
    view = table(["ID", "CLUSTER OR HOST", "NODES", "STATE", "WHEN, UTC", "REASON"], rows)
    show(output, [contract.to_document(each) for each in windows], view, empty="No maintenance is announced.")


@app.command()
def delete(
    context: typer.Context,
    window: Annotated[str, typer.Argument(help="Id of the window, as in: neo fleet maintenance list")],
    yes: YesOption = False,
) -> None:
    """End a window, or cancel it before its time. Its nodes are verified and return.

    Examples:

      neo fleet maintenance delete fleetwindow-e00abc --yes
    """
    confirm(f"End the window {window}?", yes=yes)
    with connect(profile_of(context)) as client:
        client.call(f"{SERVICE}/Delete", {"id": window})
    say(f"{window} has ended. See its nodes return: neo fleet node list")


def _nodes(client: Client) -> "list[Node]":
    return list(client.list_all(f"{NODES}/List"))


def _time(at: "Timestamp") -> str:
    return f"{contract.to_datetime(at):%Y-%m-%d %H:%M}"
