# pyright: strict
"""What an operator may choose about object storage, but for its ports: the first fields of `Settings`."""

from dataclasses import dataclass
from pathlib import Path

from neocloud.control_plane.option_values import absolute_path, none_or, option


@dataclass(frozen=True)
class ObjectSettings:
    allow_private_transfers: bool = option(
        False,
        "Allow transfers of objects from and to endpoints with private addresses or on this machine."
        " Default: no.",
        kind=bool,
    )
    object_blobs: str = option(
        "",
        "Bucket of another S3 engine, and a prefix in it, that keep the bodies of objects, encrypted. Needs"
        " --object-blobs-endpoint and --object-blobs-credentials. Bodies that are stored already are not"
        ' moved. Default: "none", files in the state folder.',
        parse=none_or(str),
        metavar="s3://BUCKET/PREFIX",
    )
    object_blobs_endpoint: str = option(
        "", "URL of that engine, such as https://s3.example.com:9000.", metavar="URL"
    )
    object_blobs_region: str = option(
        "us-east-1", "Region that requests to that engine are signed for. Default: us-east-1."
    )
    object_blobs_credentials: Path | None = option(
        None,
        "File of mode 0600 with the access key of that engine, as AWS's clients have it: a section [default]"
        " with aws_access_key_id and aws_secret_access_key.",
        parse=absolute_path,
        kind=Path,
    )
    object_metadata: str = option(
        "",
        "File of mode 0600 with the URL of a PostgreSQL database that keeps the metadata of objects; it may"
        ' contain a password. Metadata that are stored already are not moved. Default: "none", a file in the'
        " state folder.",
        parse=none_or(lambda text: str(absolute_path(text))),
        metavar="FILE",
    )
    """A path, or empty."""
