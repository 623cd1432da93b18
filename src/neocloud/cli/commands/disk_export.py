"""`neo compute image export`, and the same of disks and snapshots: write a disk to a bucket as qcow2."""

import re
from datetime import UTC, datetime
from shlex import quote
from typing import Annotated, Any

import typer

from neocloud.cli.output import Format, JsonObject, OutputOption, fields_table, say, show, size_text
from neocloud.cli.progress import finish
from neocloud.cli.resources.lookup import Cloud, ProjectClient, closest_names, names_of
from neocloud.cli.resources.noun import Overrides
from neocloud.cli.storage.places import place_of
from neocloud.client.errors import ClientError

EXPORTS = "neocloud.compute.v1.DiskExportService"
IMAGES, DISKS, SNAPSHOTS = (f"nebius.compute.v1.{kind}Service" for kind in ("Image", "Disk", "DiskSnapshot"))
LATEST_IMAGE = f"{IMAGES}/GetLatestByFamily"
WAIT_SECONDS = 24 * 3600.0
LONGEST_START = 40
TargetArgument = Annotated[
    str, typer.Argument(help="The object, s3://BUCKET/KEY; nothing is replaced.", metavar="TARGET")
]
ExportNameOption = Annotated[
    str, typer.Option("--name", help="Name of the export. Default: the source's, and the time.")
]
ImageArgument = Annotated[
    str,
    typer.Argument(
        help="Name or id of the image, or the family of one that comes with the cloud.",
        autocompletion=names_of(IMAGES),
    ),
]
DiskArgument = Annotated[str, typer.Argument(help="Name or id of the disk.", autocompletion=names_of(DISKS))]
SnapshotArgument = Annotated[
    str, typer.Argument(help="Name or id of the snapshot.", autocompletion=names_of(SNAPSHOTS))
]


def export_image(
    cloud: Cloud,
    image: ImageArgument,
    target: TargetArgument,
    name: ExportNameOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Write the disk of an image to a bucket as a qcow2 file, and wait until it is whole.

    The file itself is not encrypted; the bucket encrypts it like all its objects. It needs the right to
    create objects there. Images that come with the cloud can be exported, too.

    Example:

      neo compute image export golden s3://disks/golden.qcow2
    """
    found = cloud.find_optional(IMAGES, image) or _public_image(cloud, image)
    _export(cloud, ("image", IMAGES, "source_image_id"), image, found, target, name, output)


def export_disk(
    cloud: Cloud,
    disk: DiskArgument,
    target: TargetArgument,
    name: ExportNameOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Write a disk to a bucket as a qcow2 file, and wait until it is whole.

    The file has the disk as it is now. A machine that uses it keeps running, and is frozen while the disk is
    copied. The file itself is not encrypted; the bucket encrypts it like all its objects.

    Example:

      neo compute disk export data s3://disks/data.qcow2
    """
    found = cloud.find_optional(DISKS, disk)
    _export(cloud, ("disk", DISKS, "source_disk_id"), disk, found, target, name, output)


def export_snapshot(
    cloud: Cloud,
    snapshot: SnapshotArgument,
    target: TargetArgument,
    name: ExportNameOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Write a snapshot of a disk to a bucket as a qcow2 file, and wait until it is whole.

    The file itself is not encrypted; the bucket encrypts it like all its objects.

    Example:

      neo compute disk-snapshot export before-upgrade s3://disks/before-upgrade.qcow2
    """
    found = cloud.find_optional(SNAPSHOTS, snapshot)
    _export(cloud, ("snapshot", SNAPSHOTS, "source_disk_snapshot_id"), snapshot, found, target, name, output)


def _export(
    cloud: ProjectClient,
    source: tuple[str, str, str],
    name: str,
    found: Any,
    target: str,
    export_name: str,
    output: Format,
) -> None:
    """`source`: the word for it, its service, and the field of the export that names it."""
    word, service, field = source
    if found is None:
        known = [each.metadata.name for each in cloud.list_all(service)]
        raise ClientError("NOT_FOUND", f"There is no {word} {name!r}", closest_names(name, known))
    bucket, key = _object(target)
    own = export_name or _new_name(name)
    spec: JsonObject = {
        field: found.metadata.id,
        "destination_storage": {"bucket_name": bucket, "object_name": key},
    }
    metadata = {"parent_id": cloud.project, "name": own}
    operation = cloud.client.call(f"{EXPORTS}/Create", {"metadata": metadata, "spec": spec})
    try:
        finish(cloud.client, operation, f"Export {word} {name}", WAIT_SECONDS)
    except KeyboardInterrupt:
        say(f"It continues in the cloud. `neo compute disk-export delete {quote(own)}` ends it.")
        raise
    status = cloud.client.call(f"{EXPORTS}/Get", {"id": operation.resource_id}).status
    document = {
        "id": operation.resource_id,
        "name": own,
        "object": target,
        "size_bytes": status.object_size_bytes,
        "sha256": status.sha256,
    }
    rows = [
        ("Export", own),
        ("Object", target),
        ("Size", size_text(status.object_size_bytes)),
        ("SHA-256", status.sha256),
    ]
    show(output, document, fields_table(rows))


def _new_name(source: str) -> str:
    start = re.sub(r"[^a-z0-9]+", "-", source.lower())[:LONGEST_START].strip("-")
    return f"{start or 'export'}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _public_image(cloud: ProjectClient, family: str) -> Any | None:
    """Return the newest image of a family that comes with the cloud."""
    try:
        return cloud.client.call(LATEST_IMAGE, {"image_family": family})
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
        return None


def _object(target: str) -> tuple[str, str]:
    """Return bucket and key. Raises ClientError."""
    place = place_of(target)
    bucket, key = getattr(place, "bucket", ""), getattr(place, "key", "")
    if not bucket or not key or key.endswith("/"):
        raise ClientError(
            "INVALID_ARGUMENT", f"{target!r} does not name an object", "Write s3://BUCKET/KEY.qcow2"
        )
    return bucket, key


EXPORT_OVERRIDES: Overrides = {
    "image": {"export": export_image},
    "disk": {"export": export_disk},
    "disk-snapshot": {"export": export_snapshot},
}
