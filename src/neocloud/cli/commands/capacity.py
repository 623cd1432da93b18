"""`neo capacity` and `neo compute platform list`: shapes of nodes, how many more fit, and their prices."""

from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, JsonObject, OutputOption, fields_table, show, table
from neocloud.cli.resources.lookup import Cloud, ProjectClient
from neocloud.cli.resources.prices import estimate
from neocloud.cli.resources.shapes import LIST_PLATFORMS
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.nebius.compute.v1 import Platform

app = command_group()
INSTANCE = "nebius.compute.v1.CreateInstanceRequest"
HEADERS = ("PLATFORM", "PRESET", "VCPU", "GIB", "GPUS", "FIT NOW", "HOUR", "MONTH")
IN_NAMES = ("VCPU", "GIB", "GPUS")
"""Columns whose numbers are in the name of the preset, too."""
FREE_LABEL = "neocloud.dev/free."
"""On a platform, for each preset that the machine can hold: how many more of it fit now."""


@app.command()
def capacity(
    cloud: Cloud,
    all_presets: Annotated[
        bool, typer.Option("--all", help="Show the presets that this cloud's machines cannot hold, too.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show how many more nodes of each preset fit now, and what one costs.

    The price is of the node alone; disks and file systems are charged by their size.

    Examples:

      neo capacity
      neo capacity --all
    """
    platforms = list(cloud.client.list_all(LIST_PLATFORMS, {"parent_id": cloud.project}))
    items = [row for each in platforms for row in _rows(cloud, each, all_presets=all_presets)]
    view = table(
        HEADERS,
        ([item[name] for name in _FIELDS] for item in items),
        right=HEADERS[2:],
        minor=IN_NAMES,
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
        price = estimate(cloud.client, INSTANCE, {"spec": {"resources": resources}})
        size = (preset.resources.vcpu_count, preset.resources.memory_gibibytes, preset.resources.gpu_count)
        values = (name, preset.name, *size, fits or "-", price.hour, price.month)
        rows.append(dict(zip(_FIELDS, values, strict=True)))
    return rows


def list_platforms(cloud: Cloud, output: OutputOption = Format.TABLE) -> None:
    """List the platforms with their presets: how many of each fit here now, and what one costs.

    A machine of this cloud cannot hold a preset that has `-` for the number that fit now.

    Examples:

      neo compute platform list
      neo capacity
    """
    found = list(cloud.client.list_all(LIST_PLATFORMS, {"parent_id": cloud.project}))
    if output is not Format.TABLE:
        show(output, [contract.to_document(item) for item in found], fields_table(()))
        return
    rows = [
        (*(row[name] for name in _FIELDS), each.spec.human_readable_name)
        for each in found
        for row in _rows(cloud, each, all_presets=True)
    ]
    view = table([*HEADERS, "TITLE"], rows, right=HEADERS[2:], minor=IN_NAMES)
    show(output, None, view, empty="There is no platform.")
