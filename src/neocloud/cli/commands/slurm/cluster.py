"""`neo slurm cluster`: show and delete clusters; the modules beside it create and change them."""

from typing import Annotated, Any

import typer

from neocloud.cli.commands.slurm import checks, login
from neocloud.cli.commands.slurm.create import create
from neocloud.cli.commands.slurm.lookup import (
    SERVICE,
    NameArgument,
    ProjectOption,
    find_cluster,
    list_clusters,
    open_place,
    state_of,
)
from neocloud.cli.commands.slurm.scale import scale
from neocloud.cli.commands.slurm.watch import watch_operation
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, print_view, show, table
from neocloud.cli.progress import duration
from neocloud.cli.terminal import echo
from neocloud.core import contract

app = command_group(
    """Slurm clusters: controller, accounting, login node and workers over one shared root.

Examples:

  neo slurm cluster create bank --workers 2
  neo slurm cluster scale bank --workers 4
  neo slurm cluster ssh bank -- sinfo
"""
)
app.command("create")(create)
app.command("scale")(scale)
app.command("check")(checks.check)
app.command("ssh")(login.ssh)
app.command("ssh-config")(login.ssh_config)


@app.command("list")
def list_all(
    context: typer.Context, project: ProjectOption = "", output: OutputOption = Format.TABLE
) -> None:
    """List the clusters of the project.

    Example:

      neo slurm cluster list
    """
    clusters = list_clusters(open_place(context, project))
    rows = (
        (
            item.metadata.name,
            state_of(item),
            ", ".join(f"{part.count} {part.name} ({part.preset})" for part in item.spec.node_sets),
            _login_address(item),
            item.metadata.id,
        )
        for item in clusters
    )
    show(
        output,
        [contract.to_dict(item) for item in clusters],
        table(["NAME", "STATE", "WORKERS", "LOGIN", "ID"], rows),
        empty="There is no Slurm cluster. Create one with `neo slurm cluster create NAME --workers 2`.",
    )


@app.command()
def get(
    context: typer.Context,
    name: NameArgument,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one cluster: its state, pending steps, and nodes as Slurm sees them.

    Example:

      neo slurm cluster get bank
    """
    cluster = find_cluster(open_place(context, project), name)
    if output is not Format.TABLE:
        show(output, contract.to_dict(cluster), fields_table(()))
        return
    status = cluster.status
    waiting = [
        f"{step.name}: {step.message}" for step in status.steps if step.outcome in ("waiting", "failed")
    ]
    rows = [
        ("Name", cluster.metadata.name),
        ("Id", cluster.metadata.id),
        ("State", state_of(cluster)),
        *(("Waits for", text) for text in waiting),
        *((condition.type, _condition(condition)) for condition in status.conditions),
        *(
            (f"Node set {part.name}", f"{part.count} x {part.preset} on {part.platform}")
            for part in cluster.spec.node_sets
        ),
        ("Shared root", f"{cluster.spec.shared_root.size_gibibytes} GiB, {status.shared_root_filesystem_id}"),
        ("Login", _login_address(cluster)),
        ("Slurm", status.slurm_version),
    ]
    print_view(fields_table(rows))
    echo()
    nodes = ((n.name, _node_states(n.slurm_state), n.address, n.restarts, n.reason) for n in status.nodes)
    show(
        Format.TABLE,
        None,
        table(["NODE", "SLURM STATE", "ADDRESS", "RESTARTS", "REASON"], nodes, right=["RESTARTS"]),
        empty="The cluster has no nodes yet.",
    )


@app.command()
def delete(
    context: typer.Context,
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip confirmation.")] = False,
    project: ProjectOption = "",
) -> None:
    """Delete a cluster and its shared root; all files in it are lost.

    Example:

      neo slurm cluster delete bank --yes
    """
    place = open_place(context, project)
    cluster = find_cluster(place, name)
    if not yes and not typer.confirm(f"Delete cluster {name} and all files in it?", err=True):
        raise typer.Abort
    operation = place.client.call(f"{SERVICE}/Delete", {"id": cluster.metadata.id})
    view = watch_operation(place, operation, f"Delete cluster {name}")
    echo(f"Cluster {name} is deleted after {duration(view.elapsed)}.")


def _condition(condition: Any) -> str:
    return " ".join(part for part in (condition.status, condition.reason, condition.message) if part)


def _node_states(slurm_state: str) -> str:
    """Return Slurm's states of a node, without the one that all our nodes have."""
    return "+".join(word for word in slurm_state.split("+") if word != "DYNAMIC_NORM")


def _login_address(cluster: Any) -> str:
    login_endpoint = cluster.status.login
    return f"{login_endpoint.host}:{login_endpoint.port}" if login_endpoint.port else ""
