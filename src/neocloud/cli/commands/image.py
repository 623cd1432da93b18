"""`neo image`: build container images and machine disks by hand, and import disks."""

from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.machine import images, machine_disks
from neocloud.cli.machine.home import Home
from neocloud.cli.machine.requirements import check_machine
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.progress import stage
from neocloud.cli.target import home_of
from neocloud.client.errors import ClientError

app = command_group(
    "Build the container images of clusters and machines, and the disks that machines start from.\n\n"
    "Example:\n\n  neo image build machine"
)
HomeOption = Annotated[Path | None, typer.Option(envvar="NEOCLOUD_HOME", help="State folder of the cloud.")]


@app.command()
def build(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Which ones. Default: all that `neo up` needs.", show_default=False),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME", help="With `machine`: just this disk.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Start from nothing also when it is there.")] = False,
    home: HomeOption = None,
) -> None:
    """Build images that are missing or whose recipe has changed.

    `neo up` does this by itself, but for what only virtual machines need: `neo image build machine` makes the
    disks that they start from and the container image that runs them, in two to three minutes, once.

    Examples:

      neo image build
      neo image build machine            # before the first virtual machine
      neo image build slurm --force      # also when it is there already
    """
    if only and names != [images.MACHINE]:
        raise ClientError("INVALID_ARGUMENT", "--only chooses a disk of `machine`", "Name that image too")
    chosen = _chosen(names)
    check_machine()
    place = Home(home_of(context, home))
    place.create()
    with place.locked(lambda: say(f"Another neo is at work on {place.path}; waiting for it.")):
        place.keep_options(place.options())
        for name in chosen:
            with stage(f"Image {name}") as progress:
                part = only if name == images.MACHINE else None
                is_named = name in (names or chosen)
                images.build_image(name, place.path, progress, force=force and is_named, only=part)
        if images.LAUNCHER in chosen and place.server() is not None:
            say("The running cloud takes it within seconds; machines that run stay on what they have.")


def _chosen(names: list[str] | None) -> list[str]:
    """In order, with what they need."""
    known = images.all_image_names()
    for name in names or ():
        if name not in known:
            raise ClientError(
                "NOT_FOUND", f"There is no image named {name!r}", f"There are: {', '.join(known)}"
            )
    wanted = names or images.image_names()
    needed = [images.LAUNCHER] if images.MACHINE in wanted and images.LAUNCHER not in wanted else []
    return [*needed, *wanted]


@app.command("import")
def import_image(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A disk: qcow2 or raw.", exists=True, dir_okay=False)],
    name: Annotated[str, typer.Option("--name", help="Of the image, for example rocky9.")],
    family: Annotated[
        str | None, typer.Option("--family", help="Clients ask for it. Default: the name.")
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="What it is, for people. Default: the name.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Take a disk that starts by itself, such as a cloud image of a distribution, as an image of machines.

    It must bring cloud-init, or its machines get no network and no keys. The file is copied. A later import
    of the same name replaces it for new machines; those that exist keep their disks.

    Example:

      neo image import rocky9.qcow2 --name rocky9 --title "Rocky Linux 9"
    """
    place = Home(home_of(context, home))
    place.create()
    with place.locked(lambda: say(f"Another neo is at work on {place.path}; waiting for it.")):
        place.keep_options(place.options())
        with stage(f"Import {file.name}"):
            facts = machine_disks.import_disk(
                file, place.path, name=name, family=family or name, title=title or name
            )
    say(f"Image {name}, family {facts['family']}: for disks of {facts['minimum_bytes']} bytes or more.")


@app.command("list")
def list_images(context: typer.Context, output: OutputOption = Format.TABLE, home: HomeOption = None) -> None:
    """Show the images and which version of each is built.

    Example:

      neo image list
    """
    place = home_of(context, home)
    names = [name for name in images.all_image_names() if name != images.MACHINE]
    rows = [{"name": name, "version": images.built_version(name, place)} for name in names]
    rows += [
        {"name": f"{images.MACHINE}/{disk['name']}", "version": disk["version"], "title": disk["title"]}
        for disk in machine_disks.disks(place)
    ]
    lines = (
        (row["name"], row["version"] or "not built", row.get("title", "container image")) for row in rows
    )
    show(output, rows, table(["NAME", "VERSION", "TITLE"], lines), empty="There are no images.")
