# pyright: strict
"""Open test conversations: a file, or an object of a bucket that is read as the signed-in account."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import typer

from neocloud.cli.storage.commands.session import s3_session
from neocloud.cli.storage.places import SCHEME, bucket_place_of
from neocloud.client.errors import ClientError

LARGEST_BYTES = 5 * 10**9
"""The same limit as for data of fine-tuning jobs."""


@contextmanager
def data_file(context: typer.Context, data: str) -> Generator[Path]:
    """Yield the path of the data; a copy of an object, with its checksum verified, while the context lasts.

    Raises ClientError.
    """
    if not data.startswith(SCHEME):
        yield Path(data)
        return
    from neocloud.cli.storage.streams import download_stream  # noqa: PLC0415  botocore takes a while to load

    place = bucket_place_of(data)
    if place.is_folder:
        raise ClientError("INVALID_ARGUMENT", f"{data} is a folder", "Name an object: s3://BUCKET/KEY")
    with tempfile.NamedTemporaryFile(prefix="neo-evaluate-") as file:
        with s3_session(context) as s3:
            download_stream(s3, place, file, LARGEST_BYTES)
        yield Path(file.name)
