"""`neo slurm cluster create` and `scale`: change a cluster and show its steps."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.output import Format, JsonObject, OutputOption, counted, fields_table, say, show
from neocloud.cli.progress import StepsView, duration
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    ClusterArgument,
    ProjectClient,
    ProjectOption,
    connect_to_project,
    state_of,
)
from neocloud.cli.resources.names import resolve_names
from neocloud.cli.resources.noun import load_method
from neocloud.cli.resources.shapes import smallest_shape
from neocloud.cli.ssh import default_public_keys, read_public_keys
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import Operation
    from neocloud.messages.neocloud.slurm.v1 import Cluster

WHY_SECONDS = (
    "(The published figure for this task elsewhere is 20 to 30 minutes. Here it takes\n"
    "seconds because the machine and its drivers already exist.)"
)


NameArgument = Annotated[
    str, typer.Argument(help="Name of the cluster: lower-case letters, digits and hyphens.")
]
WorkersOption = Annotated[int, typer.Option(help="Number of worker nodes.")]
PlatformOption = Annotated[str, typer.Option(help="Platform of the workers. Default: one without GPUs.")]
PresetOption = Annotated[str, typer.Option(help="CPUs, memory and GPUs of a worker. Default: the smallest.")]
NodeSetOption = Annotated[str, typer.Option(help="Name of the node set; nodes are NAME-0, NAME-1.")]
SharedRootSizeOption = Annotated[int, typer.Option(help="Size of the shared root in GiB; 0: the default.")]
SshKeyOption = Annotated[
    list[Path] | None,
    typer.Option(help="Public key file to authorize; repeatable. Default: your keys in ~/.ssh."),
]
LoginPortOption = Annotated[
    int, typer.Option(help="Port of the login node on this machine; 0: any free port.")
]
LoginNodesOption = Annotated[
    int, typer.Option(help="Number of login nodes behind the port; each session goes to one that answers.")
]
SubnetOption = Annotated[
    str, typer.Option(help="Id or name of the subnet of the nodes. Default: a new network for the cluster.")
]
FilesystemOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ID:PATH", help="Filesystem to mount for jobs, e.g. at /mnt/data; repeatable."),
]
ReuseOption = Annotated[bool, typer.Option("--reuse", help="Use the existing cluster of this name, if any.")]


def create(
    context: typer.Context,
    name: NameArgument,
    workers: WorkersOption = 2,
    platform: PlatformOption = "",
    preset: PresetOption = "",
    node_set: NodeSetOption = "worker",
    shared_root_size: SharedRootSizeOption = 0,
    ssh_key: SshKeyOption = None,
    login_port: LoginPortOption = 0,
    login_nodes: LoginNodesOption = 1,
    subnet: SubnetOption = "",
    filesystem: FilesystemOption = None,
    reuse: ReuseOption = False,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a cluster and wait until it is READY, with a live view of its steps.

    Interrupting the command does not stop the operation; `neo slurm cluster get` shows its progress.

    Examples:

      neo slurm cluster create lab --workers 2
      neo slurm cluster create lab --workers 1 --platform gpu-h100-sxm --preset 1gpu-16vcpu-200gb
      neo slurm cluster create lab --ssh-key team.pub --login-port 2222
      neo slurm cluster create lab --subnet vpcsubnet-e00abc --filesystem computefilesystem-e00abc:/mnt/data
    """
    cloud = connect_to_project(context, project)
    existing = cloud.find_optional(CLUSTERS, name) if reuse else None
    if existing is not None:
        existing = watch_until_ready(cloud, existing)
        report_ready(existing, output, f"Cluster {name} already exists and is READY; it is used unchanged.")
        return
    platform, preset = smallest_shape(cloud, platform, preset)
    keys = read_public_keys(default_public_keys(Path.home() / ".ssh") if ssh_key is None else ssh_key)
    spec = {
        "node_sets": [{"name": node_set, "platform": platform, "preset": preset, "count": workers}],
        "shared_root": {"size_gibibytes": shared_root_size},
        "login": {"ssh_public_keys": keys, "port": login_port, "count": login_nodes},
        "subnet_id": subnet,
        "filesystems": [_mounted(text) for text in filesystem or ()],
    }
    request = {"metadata": {"parent_id": cloud.project, "name": name}, "spec": spec}
    resolve_names(request, load_method(f"{CLUSTERS}/Create").input.DESCRIPTOR, cloud)
    operation = _created(cloud, request)
    view = watch_operation(
        cloud, operation, f"Cluster {name}: {counted(workers, 'worker')} {preset} on {platform}"
    )
    cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": operation.resource_id})
    if not keys:
        say("Nobody can sign in with ssh: no key was given and ~/.ssh contains none.")
    report_ready(cluster, output, f"Cluster {name} is READY after {duration(view.elapsed)}.\n{WHY_SECONDS}")


def _created(cloud: ProjectClient, request: JsonObject) -> "Operation":
    try:
        return cloud.client.call(f"{CLUSTERS}/Create", request)
    except ClientError as error:
        name = request["metadata"]["name"]
        if error.code != "ALREADY_EXISTS" or cloud.find_optional(CLUSTERS, name) is None:
            raise
        raise ClientError(
            error.code,
            f"A cluster named {name!r} exists already",
            f"Choose another name, or use that one, as it is: neo slurm cluster create {quote(name)} --reuse",
        ) from error


def _mounted(text: str) -> dict[str, str]:
    identifier, colon, path = text.partition(":")
    if not (identifier and colon and path):
        raise typer.BadParameter(
            f'"{text}" is not ID:PATH; give e.g. computefilesystem-e00abc:/mnt/data'
            " (`neo compute filesystem list` lists the ids)",
            param_hint="--filesystem",
        )
    return {"filesystem_id": identifier, "mount_path": path}


def report_ready(cluster: "Cluster", output: Format, text: str) -> None:
    if output is not Format.TABLE:
        show(output, contract.to_document(cluster), fields_table(()))
        return
    name = quote(cluster.metadata.name)
    echo(text)
    echo(f"Sign in: neo slurm cluster ssh {name}   Submit: neo slurm job submit {name} SCRIPT")


def scale(
    context: typer.Context,
    name: ClusterArgument,
    workers: Annotated[
        int | None, typer.Option(help="New number of workers, if there is one node set.")
    ] = None,
    node_set: Annotated[
        list[str] | None,
        typer.Option(help="SET=COUNT, for example worker=3; repeatable.", metavar="SET=COUNT"),
    ] = None,
    login_nodes: Annotated[int | None, typer.Option(help="New number of login nodes, 1 to 8.")] = None,
    project: ProjectOption = "",
) -> None:
    """Change the number of workers, up or down, while jobs run, or the number of login nodes.

    A worker to be removed is drained: it takes no new jobs, and is removed when those on it have ended.
    Sessions end with their login node. A change from one login node to more, or back, ends those there are.

    Examples:

      neo slurm cluster scale lab --workers 3
      neo slurm cluster scale lab --node-set worker=3 --node-set gpu=0
      neo slurm cluster scale lab --login-nodes 2
    """
    cloud = connect_to_project(context, project)
    cluster = cloud.find(CLUSTERS, name)
    counts = _new_counts(cluster, workers, node_set or (), login_nodes)
    if login_nodes is not None:
        cluster.spec.login.count = login_nodes
    for part in cluster.spec.node_sets:
        part.count = counts.get(part.name, part.count)
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata={"id": cluster.metadata.id, "resource_version": cluster.metadata.resource_version},
        spec=cluster.spec,
    )
    # A count of 0 is the field's default: it changes only if the mask names it.
    operation = cloud.client.call(f"{CLUSTERS}/Update", request, reset_mask=["spec.node_sets.*.count"])
    view = watch_operation(cloud, operation, f"Scale {name}: {_counts_text(counts)}", is_change=True)
    echo(f"Cluster {name} has {_counts_text(counts)} after {duration(view.elapsed)}.")


def _new_counts(
    cluster: "Cluster", workers: int | None, given: Sequence[str], login_nodes: int | None
) -> dict[str, int]:
    known = [part.name for part in cluster.spec.node_sets]
    counts: dict[str, int] = {}
    for item in given:
        set_name, _, count = item.partition("=")
        if set_name not in known:
            raise ClientError(
                "INVALID_ARGUMENT", f"There is no node set {set_name!r}", f"There are: {', '.join(known)}"
            )
        if not count.isdecimal():
            raise ClientError("INVALID_ARGUMENT", f"{item!r} is not SET=COUNT", f"For example {set_name}=3")
        counts[set_name] = int(count)
    if workers is not None:
        if len(known) != 1:
            raise ClientError(
                "INVALID_ARGUMENT",
                f"There are {len(known)} node sets",
                f"Name one: --node-set {known[0]}={workers}",
            )
        counts[known[0]] = workers
    if login_nodes is not None:
        counts["login"] = login_nodes  # no node set has this name
    if not counts:
        raise ClientError("INVALID_ARGUMENT", "No count was given", "Add --workers N or --node-set SET=COUNT")
    return counts


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


CHANGE_TIMEOUT_SECONDS = 900.0
POLL_SECONDS = 0.2
MOVING = ("CREATING", "UPDATING", "STOPPED")  # a stopped one starts again with the cloud


def watch_operation(
    cloud: ProjectClient, operation: "Operation", title: str, *, is_change: bool = False
) -> StepsView:
    """Show the steps until the operation is finished. Raises ClientError if it failed."""
    view = StepsView(title, is_change=is_change)

    def show_steps(latest: "Operation") -> None:
        try:
            cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": operation.resource_id})
        except ClientError as error:
            if error.code != "NOT_FOUND":
                raise
            return
        # Until the first step starts, the status holds the steps of the previous change, all of them ok.
        if (
            view.steps
            or latest.HasField("status")
            or any(step.outcome != "ok" for step in cluster.status.steps)
        ):
            view.update(cluster.status.steps)

    try:
        with view.shown():
            cloud.client.wait(operation, on_progress=show_steps, timeout_seconds=CHANGE_TIMEOUT_SECONDS)
    except KeyboardInterrupt:
        say("The operation continues in the cloud. `neo slurm cluster list` shows its state.")
        raise
    return view


def watch_until_ready(cloud: ProjectClient, cluster: "Cluster") -> Any:
    """Show the steps of a cluster that another caller is creating or changing; return it once it is READY."""
    view = StepsView(f"Cluster {cluster.metadata.name} is {state_of(cluster)}")
    deadline = cloud.client.clock() + CHANGE_TIMEOUT_SECONDS
    if state_of(cluster) == "READY":
        return cluster
    with view.shown():
        while state_of(cluster) in MOVING and cloud.client.clock() < deadline:
            view.update(cluster.status.steps)
            cloud.client.sleep(POLL_SECONDS)
            cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": cluster.metadata.id})
        view.update(cluster.status.steps)
    if state_of(cluster) != "READY":
        name = quote(cluster.metadata.name)
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Cluster {cluster.metadata.name} is {state_of(cluster)}",
            f"`neo slurm cluster get {name}` shows the reason; `neo slurm cluster delete {name}` removes it",
        )
    return cluster
