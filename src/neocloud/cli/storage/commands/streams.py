"""`neo storage cp` from standard input or to standard output."""

import sys

import typer

from neocloud.cli.output import Format, fields_table, say, show, size_text
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.storage.places import STREAM, BucketPlace, bucket_place_of
from neocloud.cli.terminal import report
from neocloud.client.errors import ClientError
from neocloud.core.s3_calls import S3

INTERRUPTED = 130
KIB = 1024


def copy_stream(s3: S3, source: str, target: str, output: Format) -> None:
    """Copy standard input to an object, or an object to standard output. Raises ClientError."""
    if source == target:
        raise ClientError("INVALID_ARGUMENT", "Neither place is an object", "Write one as s3://BUCKET/KEY")
    place = _object(target if source == STREAM else source)
    try:
        with stopped_by_signals():
            if source == STREAM:
                _upload(s3, place, output)
            else:
                _download(s3, place, output)
    except KeyboardInterrupt:
        report("interrupted; no unfinished upload was left." if source == STREAM else "interrupted.")
        raise typer.Exit(INTERRUPTED) from None


def _object(text: str) -> BucketPlace:
    place = bucket_place_of(text)
    if place.is_folder:
        raise ClientError(
            "INVALID_ARGUMENT", f"{place} is a folder, and a stream has no name", "Name an object in it"
        )
    return place


def _upload(s3: S3, to: BucketPlace, output: Format) -> None:
    from neocloud.cli.storage.runner import Meter  # noqa: PLC0415  botocore takes a while to load
    from neocloud.cli.storage.streams import upload_stream  # noqa: PLC0415

    if sys.stdin.isatty():
        raise ClientError(
            "INVALID_ARGUMENT",
            "Standard input is a terminal, so there is nothing to upload",
            f"Pipe into it: `tar c FOLDER | neo storage cp - {to}`",
        )
    meter = Meter("Copying", None)
    try:
        with meter.shown():
            size = upload_stream(s3, sys.stdin.buffer, to, meter.count)
    except OSError as error:
        raise ClientError("FAILED_PRECONDITION", f"Standard input: {error.strerror or error}") from error
    if output is not Format.TABLE:
        show(output, {"copied": 1, "copied_bytes": size}, fields_table(()))
    else:
        say(f"Copied {size_text(size) if size >= KIB else f'{size} bytes'} to {to}.")


def _download(s3: S3, source: BucketPlace, output: Format) -> None:
    from neocloud.cli.storage.streams import download_stream  # noqa: PLC0415

    if sys.stdout.isatty():
        raise ClientError(
            "INVALID_ARGUMENT",
            "Standard output is a terminal, which obeys control characters of an object",
            f"Pipe it: `neo storage cp {source} - | less`",
        )
    if output is not Format.TABLE:
        raise ClientError(
            "INVALID_ARGUMENT", "Standard output has the object, so no other output", "Leave out --output"
        )
    download_stream(s3, source, sys.stdout.buffer)
