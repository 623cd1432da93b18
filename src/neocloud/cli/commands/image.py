"""`neo image`: build container images and machine disks, push images, and import disks."""

from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.machine import images
from neocloud.cli.machine.home import Home
from neocloud.cli.machine.server_process import check_machine
from neocloud.cli.output import Format, OutputOption, fields_table, say, show, size_text, table
from neocloud.cli.progress import stage
from neocloud.cli.registry.names import find_target
from neocloud.cli.resources.lookup import ProjectOption, connect_to_project
from neocloud.cli.target import home_of
from neocloud.client.errors import ClientError

app = command_group(
    """Build container images and machine disks.

Examples:

  neo image build machine
  neo image push slurm team/neocloud-slurm:v1
"""
)
HomeOption = Annotated[Path | None, typer.Option(envvar="NEOCLOUD_HOME", help="State folder of the cloud.")]


@app.command()
def build(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of images. Default: all that `neo up` needs.", show_default=False),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME", help="Build only this disk of `machine`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Rebuild from scratch even if it exists.")] = False,
    home: HomeOption = None,
) -> None:
    """Build images that are missing or whose recipe has changed.

    `neo up` does this, except for virtual machines: `neo image build machine` builds their disks and the
    container image that runs them, once, in two to three minutes.

    Examples:

      neo image build
      neo image build machine            # before the first virtual machine
      neo image build slurm --force      # even if it exists
    """
    if only and names != [images.MACHINE]:
        raise ClientError(
            "INVALID_ARGUMENT", "--only selects a disk of `machine`", "Add `machine` to the names"
        )
    chosen = _chosen(names)
    check_machine()
    place = Home(home_of(context, home))
    place.create()
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        place.keep_settings(place.settings())
        for name in chosen:
            with stage(f"Image {name}") as progress:
                part = only if name == images.MACHINE else None
                is_named = name in (names or chosen)
                images.build_image(name, place.path, progress, force=force and is_named, only=part)
        if images.LAUNCHER in chosen and place.server() is not None:
            say("The running cloud uses it within seconds; running machines keep their present image.")


def _chosen(names: list[str] | None) -> list[str]:
    """Return the images to build, in order, with those that they need."""
    known = images.all_image_names()
    for name in names or ():
        if name not in known:
            raise ClientError(
                "NOT_FOUND", f"There is no image named {name!r}", f"There are: {', '.join(known)}"
            )
    requested = names or images.image_names()
    needed = [images.LAUNCHER] if images.MACHINE in requested and images.LAUNCHER not in requested else []
    return [*needed, *requested]


@app.command()
def push(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of a container image, such as slurm.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="REGISTRY/REPO:TAG",
            help="A registry by its name or registry_fqdn, a repository, and a tag.",
        ),
    ],
    project: ProjectOption = "",
    home: HomeOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Push one of the cloud's own container images to a registry of the cloud.

    podman, skopeo and others pull it from there. Layers that the registry has are not sent again. A layer is
    packed before it is sent, which takes room on the disk of the images meanwhile.

    Examples:

      neo image push slurm team/neocloud-slurm:v1
      neo image push jail team/neocloud-jail:v1
    """
    from neocloud.cli.registry.client import RegistryClient  # noqa: PLC0415  httpx, for few commands
    from neocloud.cli.registry.images import push_image  # noqa: PLC0415

    folder, image = images.built_image(name, home_of(context, home))
    cloud = connect_to_project(context, project)
    target_name = find_target(cloud, target)
    with RegistryClient(cloud, target_name) as registry, stage(f"Push to {target_name}") as progress:
        digest = push_image(registry, folder, image, name, progress)
    pairs = (("Name", str(target_name)), ("Digest", digest), ("Version", image["version"]))
    document = {"name": str(target_name), "digest": digest, "version": image["version"]}
    show(output, document, fields_table(pairs))


@app.command("import")
def import_image(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Disk file: qcow2 or raw.", exists=True, dir_okay=False)],
    name: Annotated[str, typer.Option("--name", help="Name of the image, for example rocky9.")],
    family: Annotated[
        str | None, typer.Option("--family", help="Image family that clients select. Default: the name.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Title for people. Default: the name.")] = None,
    home: HomeOption = None,
) -> None:
    """Import a bootable disk, such as a distribution's cloud image, as an image for machines.

    It must contain cloud-init; otherwise its machines get no network and no keys. The file is copied. A
    later import of the same name replaces it for new machines; existing ones keep their disks.

    Example:

      neo image import rocky9.qcow2 --name rocky9 --title "Rocky Linux 9"
    """
    place = Home(home_of(context, home))
    place.create()
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        place.keep_settings(place.settings())
        with stage(f"Import {file.name}"):
            facts = images.import_disk(
                file, place.path, name=name, family=family or name, title=title or name
            )
    say(f"Image {name}, family {facts['family']}: for disks of {size_text(facts['minimum_bytes'])} or more.")


@app.command("list")
def list_images(context: typer.Context, output: OutputOption = Format.TABLE, home: HomeOption = None) -> None:
    """List the images and the built version of each.

    Example:

      neo image list
    """
    place = home_of(context, home)
    names = [name for name in images.all_image_names() if name != images.MACHINE]
    rows = [{"name": name, "version": images.built_version(name, place)} for name in names]
    rows += [
        {"name": f"{images.MACHINE}/{disk['name']}", "version": disk["version"], "title": disk["title"]}
        for disk in images.machine_disks(place)
    ]
    lines = (
        (row["name"], row["version"] or "not built", row.get("title", "container image")) for row in rows
    )
    show(output, rows, table(["NAME", "VERSION", "TITLE"], lines), empty="There are no images.")
