"""`neo slurm cluster`: show, check and delete clusters; `changes` creates and scales them."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.slurm import backup, login
from neocloud.cli.commands.slurm.changes import create, scale
from neocloud.cli.commands.slurm.watch import watch_operation
from neocloud.cli.lazy import command_group
from neocloud.cli.output import (
    Format,
    OutputOption,
    View,
    YesOption,
    confirm,
    counted,
    fields_table,
    print_view,
    show,
    table,
)
from neocloud.cli.progress import duration, stage
from neocloud.cli.resources.deletion import ForceOption, delete_by_force, id_to_delete
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    ClusterArgument,
    ProjectOption,
    connect_to_project,
    state_of,
)
from neocloud.cli.terminal import echo
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.client.profiles import Profile
    from neocloud.messages.neocloud.slurm.v1 import Cluster, Condition, LoginNodeStatus, NodeSet, Submount

app = command_group(
    """Slurm clusters: controller, accounting, login node and workers over one shared root.

Examples:

  neo slurm cluster create lab --workers 2
  neo slurm cluster scale lab --workers 4
  neo slurm cluster ssh lab -- sinfo
"""
)
app.command("create")(create)
app.command("scale")(scale)
app.command("ssh")(login.ssh)
app.command("ssh-config")(login.ssh_config)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)


@app.command("list")
def list_all(
    context: typer.Context, project: ProjectOption = "", output: OutputOption = Format.TABLE
) -> None:
    """List the clusters of the project.

    Example:

      neo slurm cluster list
    """
    cloud = connect_to_project(context, project)
    clusters = cloud.list_all(CLUSTERS)
    rows = (
        (
            item.metadata.name,
            state_of(item),
            ", ".join(f"{_count(part)} {part.name} ({part.preset})" for part in item.spec.node_sets),
            _login_address(cloud.profile, item),
            item.metadata.id,
        )
        for item in clusters
    )
    show(
        output,
        [contract.to_document(item) for item in clusters],
        table(["NAME", "STATE", "WORKERS", "LOGIN", "ID"], rows),
        empty="There is no Slurm cluster. Create one with `neo slurm cluster create NAME --workers 2`.",
    )


@app.command()
def get(
    context: typer.Context,
    name: ClusterArgument,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one cluster: its state, pending steps, and nodes as Slurm sees them.

    Example:

      neo slurm cluster get lab
    """
    cloud = connect_to_project(context, project)
    cluster = cloud.find(CLUSTERS, name)
    if output is not Format.TABLE:
        show(output, contract.to_document(cluster), fields_table(()))
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
            (f"Node set {part.name}", f"{_count(part)} x {part.preset} on {part.platform}{_idle(part)}")
            for part in cluster.spec.node_sets
        ),
        ("Shared root", f"{cluster.spec.shared_root.size_gibibytes} GiB, {status.shared_root_filesystem_id}"),
        *(("Submount", _submount(each)) for each in cluster.spec.submounts),
        ("Login", _login_address(cloud.profile, cluster)),
        *((node.name, _login_state(node)) for node in status.login.nodes if len(status.login.nodes) > 1),
        ("Slurm", status.slurm_version),
    ]
    print_view(fields_table(rows))
    echo()
    show(Format.TABLE, None, _nodes_view(cluster), empty=NO_NODES)


def _submount(submount: "Submount") -> str:
    medium = "in memory" if submount.in_memory else "on disk"
    return f"{submount.mount_path}: {submount.size_gibibytes} GiB of each worker, {medium}"


NO_NODES = "The cluster has no nodes yet."


def _nodes_view(cluster: "Cluster") -> View:
    nodes = cluster.status.nodes
    rows = ((n.name, _node_states(n.slurm_state), n.address, n.restarts, n.reason) for n in nodes)
    return table(["NODE", "SLURM STATE", "ADDRESS", "RESTARTS", "REASON"], rows, right=["RESTARTS"])


node_app = command_group("Nodes of a cluster.\n\nExample:\n\n  neo slurm node list lab")


@node_app.command("list")
def list_nodes(
    context: typer.Context,
    cluster: ClusterArgument,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List the nodes of a cluster with their states in Slurm.

    Example:

      neo slurm node list lab
    """
    found = connect_to_project(context, project).find(CLUSTERS, cluster)
    items = [contract.to_document(node) for node in found.status.nodes]
    show(output, items, _nodes_view(found), empty=NO_NODES)


@node_app.callback()
def nodes() -> None:
    """Nodes of a cluster.

    Example:

      neo slurm node list lab
    """


@app.command()
def delete(
    context: typer.Context,
    name: ClusterArgument,
    yes: YesOption = False,
    force: ForceOption = False,
    project: ProjectOption = "",
) -> None:
    """Delete a cluster and its shared root; all files in it are lost.

    Example:

      neo slurm cluster delete lab --yes
    """
    cloud = connect_to_project(context, project)
    cluster_id = id_to_delete(lambda: cloud.find(CLUSTERS, name).metadata.id, name, force=force)
    confirm(f"cluster {name} and all files in it", yes=yes)
    if force:
        delete_by_force(cloud.client, f"{CLUSTERS}/Delete", cluster_id, f"cluster {name}", yes=yes)
        return
    operation = cloud.client.call(f"{CLUSTERS}/Delete", {"id": cluster_id})
    view = watch_operation(cloud, operation, f"Delete cluster {name}")
    echo(f"Cluster {name} is deleted after {duration(view.elapsed)}.")


def _condition(condition: "Condition") -> str:
    return " ".join(part for part in (condition.status, condition.reason, condition.message) if part)


def _count(part: "NodeSet") -> str:
    return f"{part.elastic.min_count} to {part.count}" if part.HasField("elastic") else str(part.count)


def _idle(part: "NodeSet") -> str:
    if not part.HasField("elastic"):
        return ""
    return f", elastic: idle ones go after {part.elastic.idle_seconds} s"


def _node_states(slurm_state: str) -> str:
    """Return Slurm's states of a node, without those that say how it was made."""
    return "+".join(word for word in slurm_state.split("+") if word not in ("DYNAMIC_NORM", "CLOUD"))


def _login_state(node: "LoginNodeStatus") -> str:
    state = "ready" if node.ready else f"not ready: {node.message or 'starting'}"
    if node.drained:
        sessions = counted(node.sessions, "session") if node.sessions >= 0 else "sessions unknown"
        state = f"{state}, drained: {sessions}"
    return f"{state}, {counted(node.restarts, 'restart')}" if node.restarts else state


def _login_address(profile: "Profile", cluster: "Cluster") -> str:
    endpoint = cluster.status.login
    if not endpoint.port:
        return ""
    host = login.login_host(profile, endpoint.host)
    return f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"


CHECK_TIMEOUT_SECONDS = 900.0
VERDICTS = ("pass", "fail", "not_enforced", "not_run")


@app.command()
def check(
    context: typer.Context,
    name: ClusterArgument,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Report only; do not drain nodes that fail.")
    ] = False,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Measure every node: CPU, memory, GPUs, all-reduce bandwidth, shared root, clock.

    A node that fails is drained in Slurm with the reason, so that no job starts on it. A check that cannot
    run here (GPUs on a machine without) is reported as not_run, and a limit of jobs that nothing on this host
    enforces as not_enforced. The exit code is 1 if any check failed.

    Examples:

      neo slurm cluster check lab
      neo slurm cluster check lab --report-only --output json
    """
    cloud = connect_to_project(context, project)
    cluster = cloud.find(CLUSTERS, name)
    request = {"id": cluster.metadata.id, "report_only": report_only}
    with stage(f"Check the nodes of {name}"):
        answer = cloud.client.call(f"{CLUSTERS}/Check", request, timeout_seconds=CHECK_TIMEOUT_SECONDS)
    rows = (
        (
            item.node or "all",
            item.check,
            item.verdict,
            _node_states(item.measured) if item.check == "slurm" else item.measured,
            item.threshold,
            " ".join(part for part in (item.message, "(drained)" if item.drained else "") if part),
        )
        for item in answer.results
    )
    view = table(["NODE", "CHECK", "VERDICT", "MEASURED", "THRESHOLD", "NOTE"], rows)
    show(output, [contract.to_document(item) for item in answer.results], view, empty="No checks were run.")
    counts = Counter(item.verdict for item in answer.results)
    if output is Format.TABLE:
        echo("\n" + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS))
    if counts["fail"]:
        raise typer.Exit(1)
