"""Registries elsewhere that the operator lets registries of the cloud mirror. Pure."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")


@dataclass(frozen=True)
class Upstream:
    """A registry elsewhere, and how repositories that mirror it begin: `docker.io/library/nginx`."""

    name: str
    url: str


def upstream_of(text: str) -> Upstream:
    """Read NAME=URL, as the operator writes it. Raises ValueError."""
    name, _, url = text.partition("=")
    parts = urlsplit(url)
    is_plain = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not _NAME.fullmatch(name) or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("a name and the https URL of a registry: docker.io=https://registry-1.docker.io")
    if parts.username or not (parts.scheme == "https" or is_plain):
        raise ValueError("the URL of a registry as https, without a password")
    return Upstream(name, url.rstrip("/"))
