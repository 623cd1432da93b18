"""Settings of object storage, except its ports: the first fields of `Settings`."""

from dataclasses import dataclass
from pathlib import Path

from neocloud.settings.option_values import absolute_path, none_or, option

STORAGE_SERVICE = "storage"
"""The platform service of engines that leads workloads to the object gateway."""


def storage_host_name(region: str) -> str:
    """Return what workloads call the object gateway: a name below a domain for private use (ICANN)."""
    return f"storage.{region}.neocloud.internal"


@dataclass(frozen=True)
class ObjectSettings:
    allow_private_transfers: bool = option(
        False,
        "Allow transfers of objects from and to endpoints with private addresses or on this machine."
        " Default: no.",
        kind=bool,
    )
    registry_mirrors: tuple[str, ...] = option(
        (),
        "Registry elsewhere that registries of the cloud may mirror, with the name that such repositories"
        ' begin with; repeatable. Replaces the previous registries; "none" removes all. Default: none.',
        flag="registry-mirror",
        metavar="NAME=URL",
        clears=True,
        example="Write docker.io=https://registry-1.docker.io",
    )
    object_blobs: str = option(
        "",
        "Bucket of another S3 engine, and a prefix in it, that keep the bodies of objects, encrypted. Needs"
        " object-blobs-endpoint and object-blobs-credentials. Bodies that are stored already are not"
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
    storage_authority_file: Path | None = None
    """The certificate by which nodes trust the object gateway; None: workloads do not reach it. Operators do
    not choose it."""

    @property
    def platform_services(self) -> tuple[str, ...]:
        """Return the platform services that workloads may reach."""
        return (STORAGE_SERVICE,) if self.storage_authority_file else ()
