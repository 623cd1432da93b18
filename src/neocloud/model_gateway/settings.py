"""The settings of a gateway. Built once, in __main__.py."""

from dataclasses import dataclass
from pathlib import Path

from neocloud.data_plane.gateway_keys import gateway_folder
from neocloud.data_plane.settings import DataPlaneSettings


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


@dataclass(frozen=True)
class RetrievalSettings:
    max_project_stores: int = 100
    max_store_files: int = 10_000
    max_file_bytes: int = 64 << 20
    """Bytes of a file that is attached to a vector store."""
    max_project_bytes: int = 20 * 10**9
    """Bytes of the chunks and vectors of all vector stores of one project."""
    max_unfinished_files: int = 10_000
    """Files of one project that are not indexed yet."""
    max_project_responses: int = 10_000
    """Stored responses of one project; the oldest ones give way."""
    max_response_bytes: int = 4 << 20
    """Bytes of one stored response with its conversation."""
    response_days: int = 30


DEFAULT_PORT = 8900


@dataclass(frozen=True)
class GatewaySettings(DataPlaneSettings):
    port: int = DEFAULT_PORT
    max_connections: int = 8192
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
    silence_seconds: float = 600.0
    """A model server that sends nothing for so long, before or within a response, is given up."""
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

    @property
    def folder(self) -> Path:
        return gateway_folder(self.home)

    @property
    def callers_file(self) -> Path:
        """The cached callers, for a start while the control plane is not reachable."""
        return self.folder / "callers.json"

    @property
    def routes_file(self) -> Path:
        """The last known routes, for a start while the control plane is not reachable."""
        return self.folder / "routes.json"
