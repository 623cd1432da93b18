"""Targets of an export: standard output, or an object of a bucket that the signed-in account writes."""

import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, Annotated

import typer

from neocloud.cli.output import say
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.storage.places import BucketPlace, bucket_place_of
from neocloud.cli.storage.session import s3_session
from neocloud.cli.terminal import write

ToBucketOption = Annotated[
    str,
    typer.Option(
        "--to-bucket",
        metavar="S3-URL",
        help="Write an object, s3://BUCKET/KEY, or one in s3://BUCKET/FOLDER/, instead of standard output.",
    ),
]


@contextmanager
def exported(
    context: typer.Context, to: str, name: str, project: str = ""
) -> Generator[Callable[[str], None]]:
    """Yield what writes text. An object appears when the body has ended, whole or not at all; in a folder it
    is called `name`. Raises ClientError."""
    if not to:
        yield write
        return
    place = bucket_place_of(to)
    if place.is_folder:
        place = BucketPlace(place.bucket, place.prefix + name)
    with stopped_by_signals(), tempfile.TemporaryFile(prefix="neo-export-") as file:
        yield lambda text: _append(file, text)
        file.seek(0)
        _upload(context, file, place, project)


def _append(file: IO[bytes], text: str) -> None:
    file.write(text.encode())


def _upload(context: typer.Context, file: IO[bytes], place: BucketPlace, project: str) -> None:
    from neocloud.cli.storage.streams import upload_stream  # noqa: PLC0415  botocore takes a while to load

    with s3_session(context, project) as s3:
        upload_stream(s3, file, place, lambda _: None)
    say(f"Written to {place}.")
