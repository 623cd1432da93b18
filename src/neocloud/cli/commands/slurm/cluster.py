"""`neo slurm cluster`: show, check and delete clusters; `changes` creates and scales them."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.slurm import backup, login
from neocloud.cli.commands.slurm.changes import create, scale
from neocloud.cli.commands.slurm.watch import watch_operation
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, counted, fields_table, print_view, show, table
from neocloud.cli.progress import duration, stage
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument, ProjectClient, state_of
from neocloud.cli.resources.viewed import ListView, delete_in_project, list_in_cluster, list_in_project
from neocloud.cli.terminal import echo
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.client.profiles import Profile
    from neocloud.messages.nebius.common.v1 import Operation
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


def _list_view(cloud: ProjectClient, clusters: object) -> ListView:
    return ListView(
        {
            "NAME": lambda item: item.metadata.name,
            "STATE": state_of,
            "WORKERS": lambda item: ", ".join(map(_workers, item.spec.node_sets)),
            "LOGIN": lambda item: _login_address(cloud.profile, item),
            "ID": lambda item: item.metadata.id,
        },
        empty="There is no Slurm cluster. Create one with `neo slurm cluster create NAME --workers 2`.",
    )


list_in_project(
    app, CLUSTERS, _list_view, "List the clusters of the project.\n\nExample:\n\n  neo slurm cluster list"
)


@app.command()
def get(cloud: Cloud, name: ClusterArgument, output: OutputOption = Format.TABLE) -> None:
    """Show one cluster: its state, pending steps, and nodes as Slurm sees them.

    Example:

      neo slurm cluster get lab
    """
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
    NODE_VIEW.show(Format.TABLE, status.nodes)


def _submount(submount: "Submount") -> str:
    medium = "in memory" if submount.in_memory else "on disk"
    return f"{submount.mount_path}: {submount.size_gibibytes} GiB of each worker, {medium}"


NODE_VIEW = ListView(
    {
        "NODE": lambda node: node.name,
        "SLURM STATE": lambda node: _node_states(node.slurm_state),
        "ADDRESS": lambda node: node.address,
        "RESTARTS": lambda node: node.restarts,
        "REASON": lambda node: node.reason,
    },
    empty="The cluster has no nodes yet.",
    right=["RESTARTS"],
)


node_app = command_group("Nodes of a cluster.\n\nExample:\n\n  neo slurm node list lab")


list_in_cluster(
    node_app,
    lambda cluster: cluster.status.nodes,
    NODE_VIEW,
    "List the nodes of a cluster with their states in Slurm.\n\nExample:\n\n  neo slurm node list lab",
)


@node_app.callback()
def nodes() -> None:
    """Nodes of a cluster.

    Example:

      neo slurm node list lab
    """


def _wait_until_deleted(cloud: ProjectClient, operation: "Operation", what: str) -> None:
    view = watch_operation(cloud, operation, f"Delete {what}")
    echo(f"{what[:1].upper()}{what[1:]} is deleted after {duration(view.elapsed)}.")


delete_in_project(
    app,
    CLUSTERS,
    "cluster",
    _wait_until_deleted,
    "Delete a cluster and its shared root; all files in it are lost."
    "\n\nExample:\n\n  neo slurm cluster delete lab --yes",
    also="all files in it",
)


def _condition(condition: "Condition") -> str:
    return " ".join(part for part in (condition.status, condition.reason, condition.message) if part)


def _workers(part: "NodeSet") -> str:
    return f"{_count(part)} {part.name} ({part.preset})"


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
    cloud: Cloud,
    name: ClusterArgument,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Report only; do not drain nodes that fail.")
    ] = False,
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
