"""`neo storage mount`, `unmount` and `mounts`."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from neocloud.cli.choice import Choice
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.resources.lookup import ProjectOption, project_id_of
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.storage.mount_cache import DEFAULT_SIZE
from neocloud.cli.storage.places import SCHEME, BucketPlace, bucket_place_of
from neocloud.cli.target import profile_of, project_of
from neocloud.cli.terminal import report
from neocloud.client.connection import Client, connect
from neocloud.client.errors import ClientError

INTERRUPTED = 130
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of this machine.")]


def mount(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="BUCKET[/FOLDER]", help="Also as s3://BUCKET/FOLDER.")],
    folder: FolderArgument,
    write: Annotated[
        bool, typer.Option("--write/--read-only", help="Let programs write and delete objects, or only read.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until Ctrl-C, which unmounts.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="FOLDER", help="Cache read data on this machine's disk."),
    ] = None,
    cache_size: Annotated[
        str, typer.Option("--cache-size", help="How much is kept: 500M, 10G, 1T.")
    ] = DEFAULT_SIZE,
    project: ProjectOption = "",
) -> None:
    """Show a bucket as a folder. Only objects are in it: no links, no owners, no empty folders.

    It needs rclone and FUSE. Programs that run as you read objects as your account, for as long as you are
    signed in. With --write they make and delete objects: a file is written from start to end, and is an
    object once it was closed. Changes within a file are refused.

    Examples:

      neo storage mount data-sets ./data
      neo storage mount data-sets/train ./train --cache ~/cache --cache-size 50G
      neo storage mount data-sets/results ./results --write --foreground
    """
    from neocloud.cli.storage import mount_cache, mount_process, mounts  # noqa: PLC0415

    place = bucket_place_of(source if source.startswith(SCHEME) else SCHEME + source)
    size = mount_cache.size_of(cache_size)
    if write and cache is not None:
        raise ClientError(
            "INVALID_ARGUMENT",
            "--cache keeps what is read, and --write needs that nothing waits in a cache",
            "Give one of them; two mounts of a bucket can be in two folders",
        )
    mounts.require_programs()
    mounts.require_folder(folder)
    folder = folder.resolve()
    try:
        with stopped_by_signals():
            if foreground:
                _mount(context, project, place, folder, cache, size, is_writable=write)
                return
            options = _options(context, project, cache, size, is_writable=write)
            mount_process.mount_in_background([*options, "--", str(place), str(folder)], folder)
        ends = f"`neo storage unmount {quote(str(folder))}` ends it"
        say(f"{place} is at {folder}, {_access(write)}. {ends}.")
    except KeyboardInterrupt:
        say(f"{folder} was unmounted.")
        raise typer.Exit(INTERRUPTED) from None


def unmount(
    folder: FolderArgument,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Unmount also while programs use it: it is removed when they close their files."
        ),
    ] = False,
) -> None:
    """Unmount a bucket, also one whose rclone was killed.

    Example:

      neo storage unmount ./data
    """
    from neocloud.cli.storage import mount_table  # noqa: PLC0415

    with stopped_by_signals():
        found = mount_table.unmount(folder, force=force)
    say(f"{found.bucket} is no longer at {found.folder}.")


def mounts(output: OutputOption = Format.TABLE) -> None:
    """List the buckets that you have mounted on this machine.

    Example:

      neo storage mounts
    """
    from neocloud.cli.storage import mount_process, mount_table  # noqa: PLC0415

    documents = [
        {
            "folder": str(each.folder),
            "bucket": each.bucket,
            "access": _access(each.is_writable),
            "state": mount_table.state_of(each.folder),
            "log": str(mount_process.log_of(each.folder)),
        }
        for each in mount_table.mounted_folders()
        if each.is_bucket
    ]
    rows = [[each[name] for name in ("folder", "bucket", "access", "state")] for each in documents]
    view = table(["FOLDER", "BUCKET", "ACCESS", "STATE"], rows)
    show(output, documents, view, empty="No bucket is mounted.")


def _access(is_writable: bool) -> str:
    return "for writing" if is_writable else "read-only"


def _options(
    context: typer.Context, project: str, cache: Path | None, size: str, *, is_writable: bool
) -> list[str]:
    """Return this command for the process in the background. No secret is in it."""
    choice = context.find_object(Choice) or Choice()
    return [
        *([f"--profile={choice.profile}"] if choice.profile else []),
        *("storage", "mount", "--foreground"),
        "--write" if is_writable else "--read-only",
        *([f"--project={project}"] if project else []),
        *([f"--cache={cache.absolute()}", f"--cache-size={size}"] if cache else []),
    ]


class _Keys:
    """Keys of the account, as long as it is signed in. The reason for refusing them is printed once."""

    def __init__(self, client: Client, project_id: str) -> None:
        self._client, self._project_id, self._said = client, project_id, ""

    def issue(self) -> Mapping[str, object]:
        from neocloud.cli.storage import service  # noqa: PLC0415

        try:
            return service.sdk_key(service.issue_key(self._client, self._project_id))
        except ClientError as error:
            if str(error) != self._said:
                self._said = str(error)
                report(self._said)
            raise


def _mount(
    context: typer.Context,
    project: str,
    place: BucketPlace,
    folder: Path,
    cache: Path | None,
    size: str,
    *,
    is_writable: bool,
) -> None:
    from neocloud.cli.storage import key_server, mount_cache, mounts, service  # noqa: PLC0415

    profile = profile_of(context)
    with connect(profile) as client, ExitStack() as stack:
        project_id = project_id_of(client, profile, project) if project else project_of(profile)
        key = service.issue_key(client, project_id)
        url = service.endpoint_of(key, profile, client.endpoint)
        s3 = service.s3_of(client, profile, project_id)
        with service.s3_errors(place.bucket):
            s3.list_objects_v2(Bucket=place.bucket, Prefix=place.prefix, MaxKeys=1)
        kept = None
        if cache is not None:
            kept = stack.enter_context(mount_cache.prepared(cache.absolute(), size, url, place))
        keys = stack.enter_context(key_server.serving_keys(_Keys(client, project_id).issue))
        storage = mounts.Storage(url, key.region, profile.ca_file)
        process = stack.enter_context(
            mounts.mounted(place, folder, storage, keys, is_writable=is_writable, cache=kept)
        )
        say(f"{place} is at {folder}, {_access(is_writable)}; Ctrl-C unmounts it.")
        process.wait()
    say(f"{folder} was unmounted.")
