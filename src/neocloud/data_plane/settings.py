"""The settings that both gateways have."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataPlaneSettings(ABC):
    home: Path
    """The state folder of the cloud; the gateway owns `folder` in it."""
    api: str
    """Address of the gRPC API of the control plane, for example "127.0.0.1:7370"."""
    host: str = "127.0.0.1"
    port: int = 0
    tls_hosts: tuple[str, ...] = ()
    """Addresses on which it also listens over TLS."""
    tls_port: int = 0
    tls_certificate: Path | None = None
    """The certificate and those that lead to its authority, and the key: files in PEM form."""
    tls_key: Path | None = None
    max_connections: int = 4096
    """Client connections. A few more are accepted for the health page alone."""
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
    write_seconds: float = 60.0
    """A client that accepts no data for so long is disconnected."""
    drain_seconds: float = 15.0
    """Time for responses in progress to finish when the gateway stops. After 20 s the supervisor kills it;
    what it has to close is closed before."""
    log_level: str = "info"
    log_format: str = "text"

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder that the gateway owns."""

    @property
    def key_file(self) -> Path:
        """The key that authenticates the gateway to the control plane."""
        return self.folder / "key"


NUMBERS = (
    *("max_connections", "max_address_connections", "head_seconds", "body_seconds", "body_quiet_seconds"),
    *("keep_alive_seconds", "write_seconds", "drain_seconds"),
)
"""Settings of both gateways that are options of the same name."""
