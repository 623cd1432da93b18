"""`neo slurm cluster create`: create a cluster and show its steps."""

from pathlib import Path
from typing import Annotated, Any

import typer

from neocloud.cli.commands.slurm.keys import default_public_keys, read_public_keys
from neocloud.cli.commands.slurm.lookup import SERVICE, ProjectOption, look_for_cluster, open_place
from neocloud.cli.commands.slurm.shapes import choose_shape
from neocloud.cli.commands.slurm.watch import watch_operation, watch_until_ready
from neocloud.cli.output import Format, OutputOption, fields_table, say, show
from neocloud.cli.progress import duration
from neocloud.cli.terminal import echo
from neocloud.core import contract

WHY_SECONDS = (
    "(The published figure for this task elsewhere is 20 to 30 minutes. Here it takes\n"
    "seconds because the machine and its drivers already exist.)"
)


def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the cluster: lower-case letters, digits, hyphens.")],
    workers: Annotated[int, typer.Option(help="Number of worker nodes.")] = 2,
    platform: Annotated[str, typer.Option(help="Platform of the workers. Default: one without GPUs.")] = "",
    preset: Annotated[
        str, typer.Option(help="CPUs, memory and GPUs of a worker. Default: the smallest.")
    ] = "",
    node_set: Annotated[str, typer.Option(help="Name of the node set; nodes are NAME-0, NAME-1.")] = "worker",
    shared_root_size: Annotated[
        int, typer.Option(help="Size of the shared root in GiB; 0: the default.")
    ] = 0,
    ssh_key: Annotated[
        list[Path] | None,
        typer.Option(help="Public key file to authorize; repeatable. Default: your keys in ~/.ssh."),
    ] = None,
    login_port: Annotated[
        int, typer.Option(help="Port of the login node on this machine; 0: any free port.")
    ] = 0,
    subnet: Annotated[
        str, typer.Option(help="Subnet id of the nodes. Default: a new network for the cluster.")
    ] = "",
    filesystem: Annotated[
        list[str] | None,
        typer.Option(metavar="ID:PATH", help="Filesystem to mount for jobs, e.g. at /mnt/data; repeatable."),
    ] = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Use the existing cluster of this name, if any.")
    ] = False,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a cluster and wait until it is READY, with a live view of its steps.

    Interrupting the command does not stop the operation; `neo slurm cluster get` shows its progress.

    Examples:

      neo slurm cluster create bank --workers 2
      neo slurm cluster create lab --workers 1 --platform gpu-h100-sxm --preset 1gpu-16vcpu-200gb
      neo slurm cluster create bank --ssh-key team.pub --login-port 2222
      neo slurm cluster create bank --subnet vpcsubnet-e00abc --filesystem computefilesystem-e00abc:/mnt/data
    """
    place = open_place(context, project)
    existing = look_for_cluster(place, name) if reuse else None
    if existing is not None:
        existing = watch_until_ready(place, existing)
        report_ready(existing, output, f"Cluster {name} already exists and is READY; it is used unchanged.")
        return
    platform, preset = choose_shape(place, platform, preset)
    keys = read_public_keys(default_public_keys(Path.home() / ".ssh") if ssh_key is None else ssh_key)
    spec = {
        "node_sets": [{"name": node_set, "platform": platform, "preset": preset, "count": workers}],
        "shared_root": {"size_gibibytes": shared_root_size},
        "login": {"ssh_public_keys": keys, "port": login_port},
        "subnet_id": subnet,
        "filesystems": [_mounted(text) for text in filesystem or ()],
    }
    request = {"metadata": {"parent_id": place.project, "name": name}, "spec": spec}
    operation = place.client.call(f"{SERVICE}/Create", request)
    view = watch_operation(place, operation, f"Cluster {name}: {workers} workers {preset} on {platform}")
    cluster = place.client.call(f"{SERVICE}/Get", {"id": operation.resource_id})
    if not keys:
        say("Nobody can sign in with ssh: no key was given and ~/.ssh contains none.")
    report_ready(cluster, output, f"Cluster {name} is READY after {duration(view.elapsed)}.\n{WHY_SECONDS}")


def _mounted(text: str) -> dict[str, str]:
    identifier, colon, path = text.partition(":")
    if not (identifier and colon and path):
        raise typer.BadParameter(
            f'"{text}" is not ID:PATH; give e.g. computefilesystem-e00abc:/mnt/data'
            " (`neo compute filesystem list` lists the ids)",
            param_hint="--filesystem",
        )
    return {"filesystem_id": identifier, "mount_path": path}


def report_ready(cluster: Any, output: Format, text: str) -> None:
    if output is not Format.TABLE:
        show(output, contract.to_dict(cluster), fields_table(()))
        return
    name = cluster.metadata.name
    echo(text)
    echo(f"Sign in: neo slurm cluster ssh {name}   Submit: neo slurm job submit {name} SCRIPT")
