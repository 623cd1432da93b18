"""What an operator may choose about a running gateway. Built once in __main__.py and passed on."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileSettings:
    max_file_bytes: int = 5 * 10**9
    max_batch_lines: int = 1_000_000
    max_batch_line_bytes: int = 8 << 20
    max_open_batches: int = 500
    """Of one project."""
    max_project_files: int = 10_000
    max_project_bytes: int = 500 * 10**9
    """Bytes of all files of one project, with the inputs and answers that its open batches keep."""
    min_free_bytes: int = 2 << 30
    """Uploads are refused, and batches pause, while the disk has less."""
    batch_concurrency: int = 32
    """InputLines of all batches that are answered at a time while nobody else asks."""
    batch_window_seconds: int = 24 * 3600


DEFAULT_PORT = 8900


@dataclass(frozen=True)
class GatewaySettings:
    home: Path
    """The cloud's state folder; the gateway owns `gateway/` in it."""
    api: str
    """Address of the control plane's gRPC API: "127.0.0.1:7370"."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    max_body_bytes: int = 32 * 1024 * 1024
    requests_per_second: float = 1000.0
    """Sustained requests of one subject, with a burst of ten seconds' worth; 0: no limit."""
    max_subject_requests: int = 1000
    """Requests of one subject in progress: being read, waiting for a model or being answered."""
    max_requests: int = 6000
    """Requests of all subjects in progress."""
    max_subject_bytes: int = 256 * 1024 * 1024
    """Bytes of the bodies of one subject's requests in progress."""
    max_bytes: int = 1024 * 1024 * 1024
    """Bytes of the bodies of all requests in progress."""
    max_connections: int = 8192
    """ClientConnections of clients. More are accepted for `/health` alone."""
    max_address_connections: int = 1024
    """Of them from one address (IPv6: one /64 network). Does not count for loopback: a proxy on this machine
    stands for all its clients."""
    head_seconds: float = 15.0
    """From the first byte of a request, or from connecting, to the end of its headers."""
    body_seconds: float = 60.0
    """For the body of a request; a second more for each 4 KiB that came."""
    body_quiet_seconds: float = 30.0
    """Longest pause within a body."""
    keep_alive_seconds: int = 75
    """How long a connection stays open without a request, after one was answered."""
    silence_seconds: float = 600.0
    """An engine that says nothing for so long, within an answer or before it, is given up."""
    write_seconds: float = 60.0
    """A client that takes nothing of what is sent for so long is left."""
    drain_seconds: float = 30.0
    """How long answers under way may take when the gateway is told to stop."""
    admit_seconds: float = 10.0
    """How long the control plane's word on a token is taken without asking again."""
    admit_away_seconds: float = 300.0
    """And how long while the control plane cannot be asked."""
    renew_seconds: float = 30.0
    """A request that is under way for longer is asked about again: it ends soon after its right does."""
    hosts: tuple[str, ...] = ()
    """Names by which clients call the gateway, beside localhost and the addresses that it listens on."""
    media_domains: frozenset[str] = frozenset()
    """AllowedHosts whose https URLs of images, sounds and videos are passed on for the engines to fetch."""

    @property
    def folder(self) -> Path:
        return self.home / "gateway"

    @property
    def key_file(self) -> Path:
        """What the gateway shows to the control plane."""
        return self.folder / "key"

    @property
    def callers_file(self) -> Path:
        """Who was known last, for the same."""
        return self.folder / "callers.json"

    @property
    def routes_file(self) -> Path:
        """The last routes heard of: a gateway that starts while the control plane is away serves them."""
        return self.folder / "routes.json"
