"""The settings of an object gateway. Built once, in __main__.py."""

from dataclasses import dataclass
from pathlib import Path

from neocloud.data_plane.gateway_keys import object_gateway_folder
from neocloud.data_plane.settings import DataPlaneSettings
from neocloud.object_gateway.oci.upstream_registries import Upstream
from neocloud.object_gateway.s3.settings import DEFAULT_REGION, S3Settings
from neocloud.object_store.blobs.s3.location import S3Location

DEFAULT_PORT = 8902


@dataclass(frozen=True)
class ObjectsSettings(DataPlaneSettings):
    port: int = DEFAULT_PORT
    workload_host: str = ""
    """Address at which workloads reach it over TLS, which the engine adds to this machine; "": none."""
    workload_port: int = 0
    workload_certificate: Path | None = None
    workload_key: Path | None = None
    region: str = DEFAULT_REGION
    domains: tuple[str, ...] = S3Settings.domains
    stale_seconds: float = S3Settings.stale_seconds
    down_seconds: float = S3Settings.down_seconds
    requests_per_second: float = S3Settings.requests_per_second
    scrub_bytes_per_second: float = 32 * 1024**2
    """How much of the disk a nightly scrub takes; 0: no scrub."""
    allow_private_transfers: bool = False
    """Whether transfers may connect to private addresses and to this machine, the latter over http too."""
    upstreams: tuple[Upstream, ...] = ()
    """Registries elsewhere that may be mirrored."""
    place: S3Location | None = None
    """Where another S3 engine has the bodies of objects; None: they are files in the folder."""
    metadata: Path | None = None
    """A file with the URL of a PostgreSQL database that has the metadata; None: a file in the folder."""

    @property
    def folder(self) -> Path:
        return object_gateway_folder(self.home)

    @property
    def store_key_file(self) -> Path:
        """The key that seals the data keys of the objects. Without it no object can be read."""
        return self.folder / "store.key"

    @property
    def s3(self) -> S3Settings:
        return S3Settings(
            region=self.region,
            domains=self.domains,
            stale_seconds=self.stale_seconds,
            down_seconds=self.down_seconds,
            requests_per_second=self.requests_per_second,
        )
