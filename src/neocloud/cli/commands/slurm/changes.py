"""`neo slurm cluster create` and `scale`: change a cluster and show its steps."""

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.slurm.cluster_options import NOTHING, ElasticOptions, SpecOptions
from neocloud.cli.commands.slurm.watch import watch_operation, watch_until_ready
from neocloud.cli.output import (
    DryRunOption,
    Format,
    JsonObject,
    OutputOption,
    counted,
    fields_table,
    say,
    show,
)
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument, ProjectClient
from neocloud.cli.resources.names import resolve_names
from neocloud.cli.resources.noun import load_method
from neocloud.cli.resources.prices import show_trial
from neocloud.cli.resources.shapes import with_first, worker_shapes
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import Operation
    from neocloud.messages.neocloud.slurm.v1 import Cluster, NodeSet

NameArgument = Annotated[
    str, typer.Argument(help="Name of the cluster: lower-case letters, digits and hyphens.")
]
WorkersOption = Annotated[
    int, typer.Option(help="Number of worker nodes; with --min-workers, how many there are at most.")
]
PlatformOption = Annotated[
    str,
    typer.Option(
        help="Platform of the workers. Default: gpu-local if the machine has GPUs, else one without GPUs."
    ),
]
PresetOption = Annotated[
    str,
    typer.Option(help="CPUs, memory and GPUs of a worker. Default: the smallest of 4 GiB that fits."),
]
NodeSetOption = Annotated[str, typer.Option(help="Name of the node set; nodes are NAME-0, NAME-1.")]
SparesOption = Annotated[
    int, typer.Option(min=0, help="Of the workers, how many wait as verified spares; with --auto-repair.")
]
ReuseOption = Annotated[bool, typer.Option("--reuse", help="Use the existing cluster of this name, if any.")]


def create(
    cloud: Cloud,
    name: NameArgument,
    workers: WorkersOption = 2,
    elastic: ElasticOptions = NOTHING,
    platform: PlatformOption = "",
    preset: PresetOption = "",
    node_set: NodeSetOption = "worker",
    spec: SpecOptions = NOTHING,
    spares: SparesOption = 0,
    reuse: ReuseOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a cluster and wait until it is READY, with a live view of its steps.

    Interrupting the command does not stop the operation; `neo slurm cluster get` shows its progress.

    Examples:

      neo slurm cluster create lab --workers 2
      neo slurm cluster create lab --workers 4 --dry-run
      neo slurm cluster create lab --workers 1 --platform gpu-h100-sxm --preset 1gpu-16vcpu-200gb
      neo slurm cluster create lab --workers 8 --min-workers 0 --idle-seconds 600
      neo slurm cluster create lab --ssh-key team.pub --login-port 2222
      neo slurm cluster create lab --controllers 2
      neo slurm cluster create lab --workers 3 --auto-repair --spares 1
      neo slurm cluster create lab --workers 4 --place worker:0-1=spine/leaf-1 --place worker:2-3=spine/leaf-2
      neo slurm cluster create lab --workers 36 --block worker:0-17=rack-1 --block worker:18-35=rack-2
      neo slurm cluster create lab --subnet vpcsubnet-e00abc --filesystem computefilesystem-e00abc:/mnt/data
      neo slurm cluster create lab --submount /scratch=100 --submount /fast=2:memory
    """
    if reuse and (existing := cloud.find_optional(CLUSTERS, name)) is not None:
        existing = watch_until_ready(cloud, existing)
        report_ready(existing, output, f"Cluster {name} already exists and is READY; it is used unchanged.")
        return
    request = {"metadata": {"parent_id": cloud.project, "name": name}, "spec": spec}
    resolve_names(request, load_method(f"{CLUSTERS}/Create").input.DESCRIPTOR, cloud)
    workers_of = {"name": node_set, "count": workers, "spare_count": spares, **elastic}
    shapes = worker_shapes(cloud, platform, preset)
    operation, number = with_first(
        shapes, lambda shape: _created(cloud, request, {**workers_of, **shape}, output if dry_run else None)
    )
    if operation is not None:
        least = f"{elastic['elastic']['min_count']} to " if elastic else ""
        platform, preset = shapes[number]
        title = f"Cluster {name}: {least}{counted(workers, 'worker')} {preset} on {platform}"
        view = watch_operation(cloud, operation, title, is_change=True)
        cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": operation.resource_id})
        report_ready(cluster, output, f"Cluster {name} is READY after {duration(view.elapsed)}.")
    elif elastic:
        say("Workers beyond those that stay when they are idle are charged while they are there.")


def _created(
    cloud: ProjectClient, request: JsonObject, node_set: JsonObject, trial: Format | None
) -> "Operation | None":
    """Create a cluster of one node set; or print what `trial` would create, in this format."""
    request["spec"]["node_sets"] = [node_set]
    if trial is not None:
        return show_trial(cloud.client, f"{CLUSTERS}/Create", request, trial)
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


def report_ready(cluster: "Cluster", output: Format, text: str) -> None:
    if output is not Format.TABLE:
        show(output, contract.to_document(cluster), fields_table(()))
        return
    name = quote(cluster.metadata.name)
    echo(text)
    login = cluster.spec.login
    can_sign_in = login.ssh_public_keys or cluster.spec.users or cluster.spec.group_ids
    hints = [f"Sign in: neo slurm cluster ssh {name}"] if can_sign_in else []
    if any(part.count for part in cluster.spec.node_sets):
        hints.append(f"Submit: neo slurm job submit {name} SCRIPT")
    else:
        hints.append(f"It has no worker, so no job runs yet: neo slurm cluster scale {name} --workers 1")
    if not can_sign_in:
        hints.append(
            "Nobody can sign in with ssh: no key was given and ~/.ssh contains none."
            f" Make one with ssh-keygen, then: neo slurm user add {name} NAME --ssh-key FILE"
        )
    echo("   ".join(hints[:2]) if can_sign_in and len(hints) == 2 else "\n".join(hints))


RESET_BY_SCALE = [
    "spec.node_sets.*.count",
    "spec.node_sets.*.elastic",
    "spec.node_sets.*.elastic.min_count",
    "spec.login.drained_nodes",
]
"""A count of 0 and an empty list are the fields' defaults: they change only if the mask names them."""


NewWorkersOption = Annotated[
    int | None, typer.Option(help="New number of workers, if there is one node set.")
]
NewCountsOption = Annotated[
    list[str] | None,
    typer.Option(help="SET=COUNT, for example worker=3; repeatable.", metavar="SET=COUNT"),
]
NewMinWorkersOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Make the node set elastic: so many workers stay when they are idle, the others are started"
        " when jobs wait for them. The number of workers is how many there are at most.",
    ),
]
NewIdleSecondsOption = Annotated[
    int | None, typer.Option(min=1, help="How long a worker of an elastic set is idle before it is removed.")
]
FixedOption = Annotated[
    bool, typer.Option("--fixed", help="Make the node set no longer elastic: all its workers stay.")
]
NewLoginNodesOption = Annotated[int | None, typer.Option(help="New number of login nodes, 1 to 8.")]
NewControllersOption = Annotated[
    int | None, typer.Option(min=1, max=2, help="New number of controllers, 1 or 2.")
]


def scale(
    cloud: Cloud,
    name: ClusterArgument,
    workers: NewWorkersOption = None,
    node_set: NewCountsOption = None,
    min_workers: NewMinWorkersOption = None,
    idle_seconds: NewIdleSecondsOption = None,
    fixed: FixedOption = False,
    login_nodes: NewLoginNodesOption = None,
    controllers: NewControllersOption = None,
) -> None:
    """Change the number of workers, login nodes or controllers, up or down, while jobs run.

    --min-workers, --idle-seconds and --fixed are for the node set, or for those that --node-set names.
    A worker to be removed is drained: it takes no new jobs, and is removed when those on it have ended.
    Sessions end with their login node: `neo slurm login drain` first keeps new ones away from it. A change
    from one login node to more ends those there are.

    Examples:

      neo slurm cluster scale lab --workers 3
      neo slurm cluster scale lab --node-set worker=3 --node-set gpu=0
      neo slurm cluster scale lab --workers 8 --min-workers 1 --idle-seconds 600
      neo slurm cluster scale lab --login-nodes 2
      neo slurm cluster scale lab --controllers 2
    """
    cluster = cloud.find(CLUSTERS, name)
    is_elastic = min_workers is not None or idle_seconds is not None
    if (is_elastic or fixed) and workers is None and not node_set:
        workers = _only_set(cluster, "--node-set SET=COUNT").count
    counts = _new_counts(cluster, workers, node_set or (), login_nodes, controllers)
    if controllers is not None:
        cluster.spec.controller.count = controllers
    if login_nodes is not None:
        _set_login_nodes(cluster, login_nodes)
    for part in cluster.spec.node_sets:
        if part.name not in counts:
            continue
        part.count = counts[part.name]
        _make_elastic(part, min_workers, idle_seconds, fixed=fixed)
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata={"id": cluster.metadata.id, "resource_version": cluster.metadata.resource_version},
        spec=cluster.spec,
    )
    operation = cloud.client.call(f"{CLUSTERS}/Update", request, reset_mask=RESET_BY_SCALE)
    view = watch_operation(cloud, operation, f"Scale {name}: {_counts_text(counts)}", is_change=True)
    echo(f"Cluster {name} has {_counts_text(counts)} after {duration(view.elapsed)}.")


def _set_login_nodes(cluster: "Cluster", count: int) -> None:
    """Set their number; those that go are no longer drained."""
    login = cluster.spec.login
    login.count = count
    kept = [name for name in login.drained_nodes if int(name[-1]) < count]
    del login.drained_nodes[:]
    login.drained_nodes.extend(kept)


def _make_elastic(part: "NodeSet", min_workers: int | None, idle_seconds: int | None, *, fixed: bool) -> None:
    if fixed:
        part.ClearField("elastic")
        return
    if min_workers is not None:
        part.elastic.min_count = min_workers
    if idle_seconds is not None:
        part.elastic.idle_seconds = idle_seconds


def _only_set(cluster: "Cluster", option: str) -> "NodeSet":
    parts = cluster.spec.node_sets
    if len(parts) != 1:
        raise ClientError("INVALID_ARGUMENT", f"There are {len(parts)} node sets", f"Name one: {option}")
    return parts[0]


def _new_counts(
    cluster: "Cluster",
    workers: int | None,
    given: Sequence[str],
    login_nodes: int | None,
    controllers: int | None,
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
        counts[_only_set(cluster, f"--node-set {known[0]}={workers}").name] = workers
    if login_nodes is not None:
        counts["login"] = login_nodes  # no node set has this name
    if controllers is not None:
        counts["controller"] = controllers  # nor this one
    if not counts:
        raise ClientError("INVALID_ARGUMENT", "No count was given", "Add --workers N or --node-set SET=COUNT")
    return counts


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items())
