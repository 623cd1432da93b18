"""`neo storage ls`, `rm` and `presign`: what does not move bytes through this machine."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.output import Format, JsonObject, OutputOption, YesOption, confirm, counted, show, table
from neocloud.cli.resources.lookup import ProjectOption, connect_to_project
from neocloud.cli.storage.places import BucketPlace, bucket_place_of
from neocloud.cli.storage.session import EnvKeyOption, duration_of, s3_session
from neocloud.cli.terminal import echo, exit_code, one_line
from neocloud.client.errors import ClientError
from neocloud.core.s3_calls import S3

if TYPE_CHECKING:
    from neocloud.cli.storage.listing import Item

SHORTEST_LINK, LONGEST_LINK = timedelta(minutes=1), timedelta(days=7)
UrlArgument = Annotated[str, typer.Argument(metavar="s3://BUCKET/KEY", help="The object.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


def ls(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="[s3://BUCKET[/PREFIX]]", help="Default: the buckets of the project.")
    ] = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Also what is in folders.")] = False,
    project: ProjectOption = "",
    env_key: EnvKeyOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List buckets, or the folders and objects whose keys start with a prefix.

    Examples:

      neo storage ls
      neo storage ls s3://data-sets/train/
      neo storage ls s3://data-sets --recursive -o json
    """
    place = bucket_place_of(url) if url else None
    with s3_session(context, project, env_key=env_key) as s3:
        if place is None:
            _show_buckets(s3, output)
        else:
            _show_objects(s3, place, output, recursive=recursive)


def _show_buckets(s3: S3, output: Format) -> None:
    from neocloud.cli.storage.service import s3_errors  # noqa: PLC0415

    with s3_errors("the buckets"):
        found = s3.list_buckets().get("Buckets", ())
    items = [{"name": each["Name"], "created_at": each["CreationDate"].isoformat()} for each in found]
    rows = [(each["Name"], f"{each['CreationDate']:%Y-%m-%d %H:%M}") for each in found]
    empty = "There is no bucket. Create one with `neo storage bucket create NAME`."
    show(output, items, table(["BUCKET", "CREATED"], rows), empty=empty)


def _show_objects(s3: S3, place: BucketPlace, output: Format, *, recursive: bool) -> None:
    from neocloud.cli.storage import listing  # noqa: PLC0415

    if recursive:
        folders, items = (), list(listing.each_object(s3, place.bucket, place.key))
    else:
        folders, items = listing.level(s3, place.bucket, place.key)
    documents: list[JsonObject] = [{"prefix": each} for each in folders]
    documents += [_document(each) for each in items]
    rows: list[tuple[object, ...]] = [(each, "", "folder") for each in folders]
    rows += [(each.name, f"{each.modified_at:%Y-%m-%d %H:%M:%S}", f"{each.size:,}") for each in items]
    columns = table(["KEY", "CHANGED", "BYTES"], rows, right=["BYTES"])
    show(output, documents, columns, empty=f"There is nothing at {place}.")


def _document(item: "Item") -> JsonObject:
    changed = item.modified_at.isoformat() if item.modified_at else ""
    return {"key": item.name, "size_bytes": item.size, "modified_at": changed}


def rm(
    context: typer.Context,
    url: UrlArgument,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Delete all objects of a folder, or of the bucket.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    project: ProjectOption = "",
    env_key: EnvKeyOption = False,
) -> None:
    """Delete an object, or with --recursive all objects of a folder.

    In a bucket with versions, earlier versions are kept. Models that have seen the object are named first.

    Examples:

      neo storage rm s3://data-sets/train/one.jsonl --yes
      neo storage rm s3://data-sets/train/ --recursive --dry-run
    """
    place = bucket_place_of(url)
    with s3_session(context, project, env_key=env_key) as s3:
        names = _names_to_delete(s3, place, recursive=recursive)
        if dry_run:
            for name in names:
                echo(one_line(f"would delete {BucketPlace(place.bucket, name)}"))
            return
        if not recursive and not env_key:
            _warn_of_dependents(context, project, place)
        confirm(counted(len(names), "object") + f" at {place}" if recursive else str(place), yes=yes)
        _delete(s3, place.bucket, names)


def _warn_of_dependents(context: typer.Context, project: str, place: BucketPlace) -> None:
    from neocloud.cli.commands.inference.lineage import warn_of_dependents  # noqa: PLC0415

    warn_of_dependents(connect_to_project(context, project), str(place))


def _names_to_delete(s3: S3, place: BucketPlace, *, recursive: bool) -> list[str]:
    from neocloud.cli.storage import listing  # noqa: PLC0415
    from neocloud.cli.storage.checksums import facts_of  # noqa: PLC0415

    if recursive:
        names = [item.name for item in listing.each_object(s3, place.bucket, place.prefix)]
        if not names:
            raise ClientError("NOT_FOUND", f"There is no object in {place}")
        return names
    if not place.key:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{place} is a bucket",
            f"Delete what is in it with --recursive, or the bucket with `neo storage bucket delete"
            f" {place.bucket}`",
        )
    if facts_of(s3, place) is None:
        raise ClientError("NOT_FOUND", f"There is no object {place}", "For a folder, add --recursive")
    return [place.key]


def _delete(s3: S3, bucket: str, names: list[str]) -> None:
    from neocloud.cli.storage.copier import RemoteRoot  # noqa: PLC0415
    from neocloud.cli.storage.deletion import delete_all  # noqa: PLC0415
    from neocloud.cli.storage.runner import Outcome  # noqa: PLC0415

    outcome = Outcome()
    delete_all(s3, RemoteRoot(BucketPlace(bucket)), names, outcome)
    echo(f"Deleted {counted(outcome.deleted, 'object')}.")
    if outcome.failures:
        raise typer.Exit(exit_code(next(iter(outcome.codes)) if len(outcome.codes) == 1 else ""))


def presign(
    context: typer.Context,
    url: UrlArgument,
    expires_in: Annotated[
        str, typer.Option("--expires-in", help="How long the link works: 15m, 12h, 7d at most.")
    ] = "1h",
    put: Annotated[bool, typer.Option("--put", help="A link to upload with, by HTTP PUT.")] = False,
    project: ProjectOption = "",
    env_key: EnvKeyOption = False,
) -> None:
    """Print a link with which anybody can read an object, or with --put write it, until it expires.

    The link acts as you: it ends earlier when you lose the right, sign out or end your session
    (`neo session revoke`).

    Examples:

      neo storage presign s3://data-sets/train/one.jsonl
      neo storage presign s3://data-sets/in/upload.bin --put --expires-in 15m
    """
    place, lifetime = bucket_place_of(url), duration_of(expires_in)
    if not SHORTEST_LINK <= lifetime <= LONGEST_LINK:
        raise ClientError(
            "INVALID_ARGUMENT", f"{expires_in} is not a time that links can have", "Give 1m to 7d"
        )
    if not place.key:
        raise ClientError("INVALID_ARGUMENT", f"{place} is a bucket", "Name an object: s3://BUCKET/KEY")
    with s3_session(context, project, env_key=env_key, lifetime=lifetime) as s3:
        if not put:
            _require_object(s3, place)
        method, where = "put_object" if put else "get_object", {"Bucket": place.bucket, "Key": place.key}
        echo(s3.generate_presigned_url(method, where, ExpiresIn=int(lifetime.total_seconds())))


def _require_object(s3: S3, place: BucketPlace) -> None:
    from neocloud.cli.storage.checksums import facts_of  # noqa: PLC0415

    if facts_of(s3, place) is None:
        raise ClientError("NOT_FOUND", f"There is no object {place}")
