"""`neo storage mount`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.objects.places import BucketPlace, bucket_place_of
from neocloud.cli.output import say
from neocloud.cli.resources.lookup import ProjectOption, project_id_of
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.target import profile_of, project_of
from neocloud.cli.terminal import report
from neocloud.client.connection import Client, connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile

INTERRUPTED = 130


def mount(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="S3-URL", help="s3://BUCKET or s3://BUCKET/FOLDER")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An empty folder of this machine.")],
    write: Annotated[bool, typer.Option("--write", help="Let programs write and delete objects.")] = False,
    project: ProjectOption = "",
) -> None:
    """Show a bucket as a folder, until Ctrl-C. Only objects are in it: no links, no owners, no empty folders.

    It needs rclone and FUSE. Programs that run as you read objects as your account. With --write they make
    and delete objects: a file is written from start to end, and is an object once it was closed. Changes
    within a file are refused. Control characters in names are shown as pictures of them.

    Examples:

      neo storage mount s3://data-sets ./data
      neo storage mount s3://data-sets/results ./results --write
    """
    from neocloud.cli.objects import mounts  # noqa: PLC0415

    place = bucket_place_of(source)
    mounts.require_programs()
    mounts.require_folder(folder)
    profile = profile_of(context)
    with connect(profile) as client:
        project_id = project_id_of(client, profile, project) if project else project_of(profile)
        try:
            with stopped_by_signals():
                _mount(client, profile, project_id, place, folder.absolute(), is_writable=write)
        except KeyboardInterrupt:
            say(f"{folder} was unmounted.")
            raise typer.Exit(INTERRUPTED) from None


class _Keys:
    """Keys of the account, as long as it is signed in. What refuses them is said once."""

    def __init__(self, client: Client, project_id: str) -> None:
        self._client, self._project_id, self._said = client, project_id, ""

    def issue(self) -> Mapping[str, object]:
        from neocloud.cli.objects import service  # noqa: PLC0415

        try:
            return service.sdk_key(service.issue_key(self._client, self._project_id))
        except ClientError as error:
            if str(error) != self._said:
                self._said = str(error)
                report(self._said)
            raise


def _mount(
    client: Client, profile: Profile, project_id: str, place: BucketPlace, folder: Path, *, is_writable: bool
) -> None:
    from neocloud.cli.objects import key_server, mounts, service  # noqa: PLC0415  botocore takes a while

    key = service.issue_key(client, project_id)
    storage = mounts.Storage(service.endpoint_of(key, profile, client.endpoint), key.region, profile.ca_file)
    s3 = service.s3_of(client, profile, project_id)
    with service.s3_errors(place.bucket):
        s3.list_objects_v2(Bucket=place.bucket, Prefix=place.prefix, MaxKeys=1)
    with (
        key_server.serving_keys(_Keys(client, project_id).issue) as keys,
        mounts.mounted(place, folder, storage, keys, is_writable=is_writable) as process,
    ):
        say(f"{place} is at {folder}, {'for writing' if is_writable else 'read-only'}; Ctrl-C unmounts it.")
        process.wait()
    say(f"{folder} was unmounted.")
