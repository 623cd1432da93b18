"""`neo compute platform list`: a row per preset, in the words that `--platform` and `--preset` take."""

from typing import Annotated

import typer

from neocloud.cli.output import Format, OutputOption, show, table
from neocloud.cli.resources.lookup import connect_to_project
from neocloud.cli.resources.shapes import LIST_PLATFORMS
from neocloud.core import contract


def list_platforms(
    context: typer.Context,
    parent_id: Annotated[
        str, typer.Option(help="Id of the project. Default: the profile's.", show_default=False)
    ] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List the platforms with their presets: the available shapes of machines.

    Example:

      neo compute platform list
    """
    cloud = connect_to_project(context, parent_id)
    found = list(cloud.client.list_all(LIST_PLATFORMS, {"parent_id": cloud.project}))
    rows = (
        (
            item.metadata.name,
            shape.name,
            shape.resources.vcpu_count,
            f"{shape.resources.memory_gibibytes} GiB",
            shape.resources.gpu_count or "",
            item.spec.human_readable_name,
        )
        for item in found
        for shape in item.spec.presets
    )
    numbers = ["VCPUS", "MEMORY", "GPUS"]
    view = table(["PLATFORM", "PRESET", *numbers, "TITLE"], rows, right=numbers)
    show(output, [contract.to_dict(item) for item in found], view, empty="There is no platform.")
