# pyright: strict
"""The settings of an object gateway. Built once, in __main__.py."""

from dataclasses import dataclass
from pathlib import Path

from neocloud.core.callers import object_gateway_folder, object_gateway_key_file
from neocloud.core.upstream_registries import Upstream
from neocloud.object_gateway.s3.settings import DEFAULT_REGION, S3Settings
from neocloud.object_store.blobs.s3.location import S3Place

DEFAULT_PORT = 8902


@dataclass(frozen=True)
class ObjectsSettings:
    home: Path
    """The state folder of the cloud; the object gateway owns `objects/` in it."""
    api: str
    """Address of the gRPC API of the control plane, for example "127.0.0.1:7370"."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls_hosts: tuple[str, ...] = ()
    """Addresses on which it also listens over TLS."""
    tls_port: int = 0
    tls_certificate: Path | None = None
    """The certificate and those that lead to its authority, and the key: files in PEM form."""
    tls_key: Path | None = None
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
    max_connections: int = 4096
    max_address_connections: int = 1024
    """Connections from one address (IPv6: one /64 network). Does not apply to loopback."""
    head_seconds: float = 15.0
    """Time from the first byte of a request, or from connecting, to the end of its headers."""
    body_seconds: float = 60.0
    """Time for the body of a request; one second is added for each 4 KiB received."""
    body_quiet_seconds: float = 30.0
    """Longest pause within a body."""
    keep_alive_seconds: int = 75
    write_seconds: float = 60.0
    """A client that accepts no data for so long is disconnected."""
    drain_seconds: float = 15.0
    """Time for responses in progress to finish when the gateway stops. After 20 s the supervisor kills it."""
    scrub_bytes_per_second: float = 32 * 1024**2
    """How much of the disk a nightly scrub takes; 0: no scrub."""
    allow_private_transfers: bool = False
    """Whether transfers may connect to private addresses and to this machine, the latter over http too."""
    upstreams: tuple[Upstream, ...] = ()
    """Registries elsewhere that may be mirrored."""
    place: S3Place | None = None
    """Where another S3 engine has the bodies of objects; None: they are files in the folder."""
    metadata: Path | None = None
    """A file with the URL of a PostgreSQL database that has the metadata; None: a file in the folder."""
    log_level: str = "info"
    log_format: str = "text"

    @property
    def folder(self) -> Path:
        return object_gateway_folder(self.home)

    @property
    def key_file(self) -> Path:
        """The key that authenticates the object gateway to the control plane."""
        return object_gateway_key_file(self.home)

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
