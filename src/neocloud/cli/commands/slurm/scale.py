"""`neo slurm cluster scale`: change the number of workers."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from neocloud.cli.commands.slurm.lookup import SERVICE, NameArgument, ProjectOption, find_cluster, open_place
from neocloud.cli.commands.slurm.watch import watch_operation
from neocloud.cli.progress import duration
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.core import contract


def scale(
    context: typer.Context,
    name: NameArgument,
    workers: Annotated[
        int | None, typer.Option(help="New number of workers, if there is one node set.")
    ] = None,
    node_set: Annotated[
        list[str] | None,
        typer.Option(help="SET=COUNT, for example worker=3; repeatable.", metavar="SET=COUNT"),
    ] = None,
    project: ProjectOption = "",
) -> None:
    """Change the number of workers, up or down, while jobs run.

    Jobs on a worker that is removed do not finish: Slurm requeues them.

    Examples:

      neo slurm cluster scale bank --workers 3
      neo slurm cluster scale bank --node-set worker=3 --node-set gpu=0
    """
    place = open_place(context, project)
    cluster = find_cluster(place, name)
    counts = _new_counts(cluster, workers, node_set or ())
    for part in cluster.spec.node_sets:
        part.count = counts.get(part.name, part.count)
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata={"id": cluster.metadata.id, "resource_version": cluster.metadata.resource_version},
        spec=cluster.spec,
    )
    # A count of 0 is the field's default: it changes only if the mask names it.
    operation = place.client.call(f"{SERVICE}/Update", request, reset_mask=["spec.node_sets.*.count"])
    view = watch_operation(place, operation, f"Scale {name}: {_counts_text(counts)}")
    echo(f"Cluster {name} has {_counts_text(counts)} after {duration(view.elapsed)}.")


def _new_counts(cluster: Any, workers: int | None, given: Sequence[str]) -> dict[str, int]:
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
    if not counts:
        raise ClientError("INVALID_ARGUMENT", "No count was given", "Add --workers N or --node-set SET=COUNT")
    return counts


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items())
