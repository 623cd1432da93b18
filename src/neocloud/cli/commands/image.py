"""`neo image`: build the container images by hand."""

from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.machine import images
from neocloud.cli.machine.home import Home
from neocloud.cli.machine.requirements import check_machine
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.progress import stage
from neocloud.cli.target import home_of
from neocloud.client.errors import ClientError

app = command_group("Build the container images that clusters run on.\n\nExample:\n\n  neo image build")
HomeOption = Annotated[Path | None, typer.Option(envvar="NEOCLOUD_HOME", help="State folder of the cloud.")]


@app.command()
def build(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(help="Which ones. Default: all.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Start from nothing also when it is there.")] = False,
    home: HomeOption = None,
) -> None:
    """Build images that are missing or whose recipe has changed; `neo up` does this by itself.

    Examples:

      neo image build
      neo image build slurm --force      # also when it is there already
    """
    known = images.image_names()
    for name in names or ():
        if name not in known:
            raise ClientError(
                "NOT_FOUND", f"There is no image named {name!r}", f"There are: {', '.join(known)}"
            )
    check_machine()
    place = Home(home_of(context, home))
    place.create()
    with place.locked(lambda: say(f"Another neo is at work on {place.path}; waiting for it.")):
        place.keep_options(place.options())
        for name in names or known:
            if force:
                images.forget_image(name, place.path)
            with stage(f"Image {name}") as progress:
                images.build_image(name, place.path, progress)


@app.command("list")
def list_images(context: typer.Context, output: OutputOption = Format.TABLE, home: HomeOption = None) -> None:
    """Show the images and which version of each is built.

    Example:

      neo image list
    """
    place = home_of(context, home)
    rows = [{"name": name, "version": images.built_version(name, place)} for name in images.image_names()]
    view = table(["NAME", "VERSION"], ((row["name"], row["version"] or "not built") for row in rows))
    show(output, rows, view, empty="There are no images.")
