"""The options that all commands about objects share, and the S3 client that they mean."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer

from neocloud.cli.resources.lookup import project_id_of
from neocloud.cli.target import profile_of, project_of
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.core.s3_calls import S3

EnvKeyOption = Annotated[
    bool,
    typer.Option(
        "--env-key",
        help="Sign with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY at AWS_ENDPOINT_URL, not as yourself.",
    ),
]
_DURATION = re.compile(r"([0-9]{1,9})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@contextmanager
def s3_session(
    context: typer.Context, project: str = "", *, env_key: bool = False, lifetime: timedelta | None = None
) -> Generator[S3]:
    """Yield an S3 client of the profile's cloud, which signs as the account or by the environment."""
    from neocloud.cli.storage import service  # noqa: PLC0415  botocore takes a while to load

    if env_key:
        yield service.s3_of_environment()
        return
    profile = profile_of(context)
    with connect(profile) as client:
        project_id = project_id_of(client, profile, project) if project else project_of(profile)
        yield service.s3_of(client, profile, project_id, lifetime)


def duration_of(text: str) -> timedelta:
    """Read "90s", "15m", "12h" or "7d"; a number alone is seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ClientError("INVALID_ARGUMENT", f"{text!r} is not a duration", "Write 15m, 12h or 7d")
    return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
