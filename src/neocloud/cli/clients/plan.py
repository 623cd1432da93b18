"""The words that configurations are written in: a Target, and the files and steps that a client needs."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """The cloud to point at. `address` is host:port of TLS under the domain, as `api.localhost:7372`."""

    address: str
    redirector: str
    credentials: str
    """Text of the service account's credentials file."""
    service_account_id: str
    tenant_id: str
    project_id: str
    authority: Path
    """Certificate that the client's machine has to trust."""


@dataclass(frozen=True)
class PlannedFile:
    """A file to write, below the home directory; one that starts with `./` lies where the user works."""

    path: str
    content: str
    is_secret: bool = False


@dataclass(frozen=True)
class Plan:
    files: tuple[PlannedFile, ...]
    next_steps: tuple[str, ...]
