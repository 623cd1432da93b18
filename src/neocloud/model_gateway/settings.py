# pyright: strict
"""The settings of a gateway. Built once, in __main__.py."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileSettings:
    max_file_bytes: int = 5 * 10**9
    max_batch_lines: int = 1_000_000
    max_batch_line_bytes: int = 8 << 20
    max_open_batches: int = 500
    """Unfinished batches of one project."""
    max_project_files: int = 10_000
    max_project_bytes: int = 500 * 10**9
    """Bytes of all files of one project, including the inputs and results that its unfinished batches
    keep."""
    min_free_bytes: int = 2 << 30
    """Uploads are rejected, and batches pause, while the disk has less free space."""
    batch_concurrency: int = 32
    """Lines of all batches that are processed at a time while there are no other requests."""
    batch_window_seconds: int = 24 * 3600


DEFAULT_PORT = 8900


@dataclass(frozen=True)
class GatewaySettings:
    home: Path
    """The state folder of the cloud; the gateway owns `gateway/` in it."""
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
    max_body_bytes: int = 32 * 1024 * 1024
    requests_per_second: float = 1000.0
    """Sustained requests per second of one subject, with a burst of ten seconds; 0: no limit."""
    max_subject_requests: int = 1000
    """Requests of one subject in progress: being read, waiting for a model or being answered."""
    max_requests: int = 6000
    """Requests of all subjects in progress."""
    max_subject_bytes: int = 256 * 1024 * 1024
    """Bytes of the bodies of one subject's requests in progress."""
    max_bytes: int = 1024 * 1024 * 1024
    """Bytes of the bodies of all requests in progress."""
    max_connections: int = 8192
    """Client connections. A few more are accepted for `/health` alone."""
    max_address_connections: int = 1024
    """Connections from one address (IPv6: one /64 network). Does not apply to loopback: a proxy on this
    machine stands for all its clients."""
    head_seconds: float = 15.0
    """Time from the first byte of a request, or from connecting, to the end of its headers."""
    body_seconds: float = 60.0
    """Time for the body of a request; one second is added for each 4 KiB received."""
    body_quiet_seconds: float = 30.0
    """Longest pause within a body."""
    keep_alive_seconds: int = 75
    """Time that an idle connection stays open after a request."""
    silence_seconds: float = 600.0
    """A model server that sends nothing for so long, before or within a response, is given up."""
    write_seconds: float = 60.0
    """A client that accepts no data for so long is disconnected."""
    drain_seconds: float = 15.0
    """Time for responses in progress to finish when the gateway stops. After 20 s the supervisor kills it;
    the ledger is closed before."""
    admit_seconds: float = 10.0
    """Time that the result of an authentication is cached."""
    admit_away_seconds: float = 300.0
    """Time that it is cached while the control plane is not reachable."""
    renew_seconds: float = 30.0
    """The access of a request that runs for longer is checked again; it is stopped soon after access ends."""
    hosts: tuple[str, ...] = ()
    """Host names of the gateway, beside localhost and the addresses that it listens on."""
    media_domains: frozenset[str] = frozenset()
    """Hosts whose https URLs of images, sounds and videos are passed to the model servers to fetch."""

    log_level: str = "info"
    log_format: str = "text"

    @property
    def folder(self) -> Path:
        return self.home / "gateway"

    @property
    def key_file(self) -> Path:
        """The key that authenticates the gateway to the control plane."""
        return self.folder / "key"

    @property
    def callers_file(self) -> Path:
        """The cached callers, for a start while the control plane is not reachable."""
        return self.folder / "callers.json"

    @property
    def routes_file(self) -> Path:
        """The last known routes, for a start while the control plane is not reachable."""
        return self.folder / "routes.json"
