"""`neo image`: build container images and machine disks, push images, and import disks."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.machine import images
from neocloud.cli.machine.home import Home
from neocloud.cli.machine.server_process import check_machine
from neocloud.cli.output import Format, OutputOption, fields_table, say, show, size_text, table
from neocloud.cli.progress import stage
from neocloud.cli.registry.names import ArtifactName, find_target
from neocloud.cli.resources.lookup import ProjectClient, ProjectOption, connect_to_project
from neocloud.cli.target import HomeOption, home_of, profile_of_home
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError

app = command_group(
    """Build container images and machine disks.

Examples:

  neo image build machine
  neo image push slurm team/neocloud-slurm:v1
"""
)
PUBLIC_IMAGES = "nebius.compute.v1.ImageService/ListPublic"
OFFER_SECONDS, OFFER_LOOK_SECONDS = 60.0, 0.5
"""The server looks for new images every 2 s."""


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
    push_to: Annotated[
        str,
        typer.Option(
            "--push",
            metavar="REGISTRY[/REPO:TAG]",
            help="Push the image to a registry of the cloud afterwards. Default: REGISTRY/NAME:VERSION.",
            show_default=False,
        ),
    ] = "",
    project: ProjectOption = "",
    home: HomeOption = None,
) -> None:
    """Build images that are missing or whose recipe has changed.

    `neo up` does this, except for virtual machines: `neo image build machine` builds their disks and the
    container image that runs them, once, in two to three minutes.

    Examples:

      neo image build
      neo image build machine            # before the first virtual machine
      neo image build slurm --force      # even if it exists
      neo image build slurm --push team/neocloud-slurm:v1
    """
    if only and names != [images.MACHINE]:
        raise ClientError(
            "INVALID_ARGUMENT", "--only selects a disk of `machine`", "Add `machine` to the names"
        )
    chosen = _chosen(names)
    pushed = list(dict.fromkeys(names or chosen))
    if push_to:
        _check_push(pushed, push_to)
        cloud = connect_to_project(context, project)
        find_target(cloud, _target(push_to, pushed[0], "latest"))  # before minutes of building
    check_machine()
    place = Home(home_of(context, home))
    _build(place, chosen, names or chosen, only, force=force)
    if push_to:
        cloud = connect_to_project(context, project)  # the build may have outlived a sign-in
        for name in pushed:
            target = find_target(cloud, _target(push_to, name, images.built_version(name, place.path)))
            digest = _push(cloud, place.path, name, target)["digest"]
            say(f"{name}: {target}, {digest}")


def _build(
    place: Home, chosen: Sequence[str], named: Sequence[str], only: str | None, *, force: bool
) -> None:
    """Build these images, those that were named from scratch with `force`."""
    place.create()
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        place.keep_settings(place.settings())
        for name in chosen:
            with stage(f"Image {name}") as progress:
                part = only if name == images.MACHINE else None
                images.build_image(name, place.path, progress, force=force and name in named, only=part)
        if images.LAUNCHER in chosen and place.server() is not None:
            say("The running cloud uses it within seconds; running machines keep their present image.")


def _check_push(names: Sequence[str], push_to: str) -> None:
    """Raise ClientError where these images cannot be pushed there."""
    if images.MACHINE in names:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{images.MACHINE} is disks of machines, not a container image",
            "Build it without --push",
        )
    if "/" in push_to and len(names) > 1:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{push_to!r} names one image, and {len(names)} are built",
            f"Name one image, or the registry alone: --push {push_to.partition('/')[0]}",
        )


def _target(push_to: str, name: str, version: str) -> str:
    return push_to if "/" in push_to else f"{push_to}/{name}:{version}"


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
    place = home_of(context, home)
    images.built_image(name, place)
    cloud = connect_to_project(context, project)
    document = _push(cloud, place, name, find_target(cloud, target))
    show(output, document, fields_table((key.title(), value) for key, value in document.items()))


def _push(cloud: ProjectClient, home: Path, name: str, target: ArtifactName) -> dict[str, str]:
    from neocloud.cli.registry.client import RegistryClient  # noqa: PLC0415  httpx, for few commands
    from neocloud.cli.registry.images import push_image  # noqa: PLC0415

    folder, image = images.built_image(name, home)
    with RegistryClient(cloud, target) as registry, stage(f"Push to {target}") as progress:
        digest = push_image(registry, folder, image, name, progress)
    return {"name": str(target), "digest": digest, "version": str(image["version"])}


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
    later import of the same name replaces it for new machines; existing ones keep their disks. Where the
    cloud runs, this ends once it offers the image.

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
    if place.server() is not None:
        with stage("The running cloud takes it"):
            _wait_until_offered(place, name, str(facts["version"]))
    say(f"Image {name}, family {facts['family']}: for disks of {size_text(facts['minimum_bytes'])} or more.")


def _wait_until_offered(place: Home, name: str, version: str) -> None:
    """Wait until the running cloud lists this version, unless it ends. Raises ClientError."""
    deadline = time.monotonic() + OFFER_SECONDS
    with connect(profile_of_home(place.path, "home")) as client:
        while place.server() is not None:
            found = client.list_all(PUBLIC_IMAGES, {"region": place.settings().region})
            if any(each.metadata.name == name and each.spec.version == version for each in found):
                return
            if time.monotonic() > deadline:
                raise ClientError(
                    "DEADLINE_EXCEEDED",
                    f"{name} is imported, and the running cloud does not offer it after {OFFER_SECONDS:g} s",
                    f"Look into {place.log_file}, or start it again with `neo down` and `neo up`",
                )
            time.sleep(OFFER_LOOK_SECONDS)


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
