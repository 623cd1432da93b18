"""`neo ps`, `neo ls` and `neo ssh`: what is in the project, whatever its kind."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from neocloud.cli.commands import instance
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, say, show, table
from neocloud.cli.resources.condition import in_words, of_machine
from neocloud.cli.resources.lookup import (
    AI_JOBS,
    CLUSTERS,
    DEPLOYMENTS,
    ENDPOINTS,
    INSTANCES,
    NOT_OFFERED,
    TUNING_JOBS,
    Cloud,
    ProjectClient,
    find_in,
    list_in,
    names_of,
    not_found,
    plural,
    refusal_note,
    state_of,
)
from neocloud.client.errors import ClientError
from neocloud.core import contract

INSTANCE = "instance"
MACHINES = "neocloud.compute.v1.MachineService"
MOST_MACHINES = 20
"""How many machines are asked how they are; each question takes a moment."""
RUNNING: Sequence[tuple[str, str]] = (
    ("Slurm cluster", CLUSTERS),
    (INSTANCE, INSTANCES),
    ("deployment", DEPLOYMENTS),
    ("fine-tuning job", TUNING_JOBS),
    ("endpoint", ENDPOINTS),
    ("job", AI_JOBS),
)
"""Kinds that run, and are charged while they do."""
OTHERS: Sequence[tuple[str, str]] = (
    ("model", "neocloud.inference.v1.ModelService"),
    ("disk", "nebius.compute.v1.DiskService"),
    ("filesystem", "nebius.compute.v1.FilesystemService"),
    ("disk snapshot", "nebius.compute.v1.DiskSnapshotService"),
    ("image", "nebius.compute.v1.ImageService"),
    ("network", "nebius.vpc.v1.NetworkService"),
    ("subnet", "nebius.vpc.v1.SubnetService"),
    ("bucket", "nebius.storage.v1.BucketService"),
    ("registry", "nebius.registry.v1.RegistryService"),
    ("service account", "nebius.iam.v1.ServiceAccountService"),
)

ps_app = command_group()
ls_app = command_group()
ssh_app = command_group()


@ps_app.command()
def ps(cloud: Cloud, output: OutputOption = Format.TABLE) -> None:
    """Show what runs in the project: clusters, machines, deployments and jobs.

    Example:

      neo ps
    """
    _show(cloud, RUNNING, output, "Nothing runs here. `neo --help` shows first steps.")


@ls_app.command()
def ls(cloud: Cloud, output: OutputOption = Format.TABLE) -> None:
    """Show what is in the project, also what does not run: models, disks, networks, buckets, accounts.

    Other kinds, such as security groups and budgets, are listed by the commands of their product.

    Example:

      neo ls
    """
    kinds = [*RUNNING, *OTHERS]
    empty = f"The project has no {plural([kind for kind, _ in kinds], 'or')}."
    _show(cloud, kinds, output, empty)


@ssh_app.command()
def ssh(
    cloud: Cloud,
    name: Annotated[
        str,
        typer.Argument(
            help="Name or id of a machine or a Slurm cluster.", autocompletion=names_of(INSTANCES, CLUSTERS)
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command to run, after `--`. Default: a shell.", show_default=False),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            help=f"User of the machine's guest (default: {instance.DEFAULT_USER}) or of the cluster (root)."
        ),
    ] = "",
    identity: Annotated[
        Path | None, typer.Option("--identity", "-i", help="Private key to sign in with.")
    ] = None,
    wait: instance.WaitOption = instance.BOOT_SECONDS,
) -> None:
    """Sign in to a machine, or to the login node of a Slurm cluster.

    A machine's guest accepts ssh some time after the machine runs; the command waits for it.

    Examples:

      neo ssh web
      neo ssh web --user ubuntu --wait 600
      neo ssh lab -- sinfo
    """
    found, refusals = find_in(cloud, (INSTANCES, CLUSTERS), name)
    is_machine, is_cluster = INSTANCES in found, CLUSTERS in found
    if is_machine and is_cluster:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Both a machine and a Slurm cluster are named {name!r}",
            f"Say which: neo compute instance ssh {quote(name)}, or neo slurm cluster ssh {quote(name)}",
        )
    if is_cluster:
        from neocloud.cli.commands.slurm import login  # noqa: PLC0415  all of `neo slurm`, which `neo ls` lacks

        login.ssh(cloud, name, command, identity, user=user or login.ROOT)
    elif is_machine:
        account = user or instance.DEFAULT_USER
        instance.ssh(cloud, name, command, account, identity, wait)
    else:
        raise not_found(
            cloud,
            (INSTANCES, CLUSTERS),
            name,
            f"There is no machine and no Slurm cluster {name!r}",
            refusals,
        )


def _show(cloud: ProjectClient, kinds: Sequence[tuple[str, str]], output: Format, empty: str) -> None:
    listed, refused = list_in(cloud, kinds)
    found = [(kind, item) for kind, service in kinds for item in listed.get(service, ())]
    now = datetime.now(UTC)
    machines = _machines(cloud, [item for kind, item in found if kind == INSTANCE])
    conditions = [_condition(item, machines.get(item.metadata.id), now) for _, item in found]
    rows = [
        (item.metadata.name, kind, state, _age(item, now), item.metadata.id)
        for (kind, item), (state, _) in zip(found, conditions, strict=True)
    ]
    data: list[JsonObject] = [{"kind": kind, **contract.to_document(item)} for kind, item in found]
    if refused:
        say(refusal_note(refused))
        empty = "There is nothing of the other kinds."
    show(output, data, table(["NAME", "KIND", "STATE", "AGE", "ID"], rows, right=["AGE"]), empty=empty)
    if output is Format.TABLE:
        for line in (line for _, lines in conditions for line in lines):
            say(line)


def _condition(item: Any, machine: Any, now: datetime) -> tuple[str, Sequence[str]]:
    state = _state(item)
    if machine is not None:
        return of_machine(state, item.metadata.name, machine, now)
    return in_words(state, item, now)


def _machines(cloud: ProjectClient, instances: Sequence[Any]) -> Mapping[str, Any]:
    """Return what the machines of instances say of themselves; states alone where nobody answers."""
    found: dict[str, Any] = {}
    for item in instances[:MOST_MACHINES]:
        instance_id = item.metadata.id
        try:
            found[instance_id] = cloud.client.call(f"{MACHINES}/Get", {"instance_id": instance_id})
        except ClientError as error:
            if error.code not in (*NOT_OFFERED, "NOT_FOUND", "UNAVAILABLE"):
                raise
    return found


def _state(item: Any) -> str:
    has_state = "state" in item.status.DESCRIPTOR.fields_by_name if hasattr(item, "status") else False
    return state_of(item) if has_state else ""


def _age(item: Any, now: datetime) -> str:
    if not item.metadata.HasField("created_at"):
        return ""
    seconds = (now - contract.to_datetime(item.metadata.created_at)).total_seconds()
    for unit, each in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= each:
            return f"{seconds // each:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
