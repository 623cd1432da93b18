"""`neo capacity`: which shapes of nodes are here, how many more of each fit, and their price."""

from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, show, table
from neocloud.cli.resources.lookup import ProjectClient, ProjectOption, connect_to_project
from neocloud.cli.resources.prices import Price, estimate
from neocloud.cli.resources.shapes import LIST_PLATFORMS
from neocloud.client.errors import ClientError

if TYPE_CHECKING:
    from neocloud.messages.nebius.compute.v1 import Platform

app = command_group()
INSTANCE = "nebius.compute.v1.CreateInstanceRequest"
FREE_LABEL = "neocloud.dev/free."
"""On a platform, for each preset that the machine can hold: how many more of it fit now."""


@app.command()
def capacity(
    context: typer.Context,
    all_presets: Annotated[
        bool, typer.Option("--all", help="Show the presets that this cloud's machines cannot hold, too.")
    ] = False,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show how many more nodes of each preset fit now, and what one costs.

    The price is of the node alone; disks and file systems are charged by their size.

    Examples:

      neo capacity
      neo capacity --all
    """
    cloud = connect_to_project(context, project)
    platforms = list(cloud.client.list_all(LIST_PLATFORMS, {"parent_id": cloud.project}))
    items = [row for each in platforms for row in _rows(cloud, each, all_presets=all_presets)]
    view = table(
        ["PLATFORM", "PRESET", "VCPU", "GIB", "GPUS", "FIT NOW", "HOUR", "MONTH"],
        ([item[name] for name in _FIELDS] for item in items),
        right=["VCPU", "GIB", "GPUS", "FIT NOW", "HOUR", "MONTH"],
    )
    show(
        output,
        items,
        view,
        empty="No preset fits the machines of this cloud; `neo capacity --all` lists them.",
    )


_FIELDS = ("platform", "preset", "vcpu", "memory_gib", "gpus", "fit_now", "hour", "month")


def _rows(cloud: ProjectClient, platform: "Platform", *, all_presets: bool) -> list[JsonObject]:
    free, name = platform.metadata.labels, platform.metadata.name
    rows: list[JsonObject] = []
    for preset in platform.spec.presets:
        fits = free.get(f"{FREE_LABEL}{preset.name}")
        if fits is None and not all_presets:
            continue
        resources = {"platform": name, "preset": preset.name}
        price = _price(cloud, {"spec": {"resources": resources}})
        size = (preset.resources.vcpu_count, preset.resources.memory_gibibytes, preset.resources.gpu_count)
        values = (name, preset.name, *size, fits or "-", price.hour, price.month)
        rows.append(dict(zip(_FIELDS, values, strict=True)))
    return rows


def _price(cloud: ProjectClient, request: JsonObject) -> Price:
    """Return the price of a node; the price list need not have one."""
    try:
        return estimate(cloud.client, [(INSTANCE, request)])
    except ClientError as error:
        if error.code != "INVALID_ARGUMENT":
            raise
        return Price("no price", "no price")
