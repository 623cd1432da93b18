"""The home folder as a running server uses it: one server at a time, and what it leaves there for clients."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from neocloud import __version__
from neocloud.core.private_folder import ensure_private
from neocloud.settings import Settings


class HomeInUse(Exception):
    """Another server runs on this home folder."""


@contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """Hold the home folder; the kernel lets go of it even when this process is killed. Raises OpenFolder when
    other users may enter it."""
    ensure_private(settings.home)
    with open(os.open(settings.lock_file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise HomeInUse(
                f"A server runs on {settings.home} already (pid {holder}). Use it, or stop it with: neo down"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def held_credentials(settings: Settings) -> dict[str, Any] | None:
    """The first service account's credentials as an earlier server left them."""
    with suppress(FileNotFoundError, ValueError):
        return json.loads(settings.credentials_file.read_text())
    return None


def announce(
    settings: Settings,
    *,
    grpc: str,
    http: str,
    credentials: Mapping[str, Any],
    tenant_id: str,
    project_id: str,
    tls: str = "",
    redirector: str = "",
    gateway: str = "",
) -> None:
    """Write what clients need; server.json last, since its presence means ready."""
    ids = {"tenant-id": tenant_id, "project-id": project_id}
    _write(settings.credentials_file, {**credentials, "endpoint": grpc, **ids})
    ready = {"pid": os.getpid(), "version": __version__, "tenant_id": tenant_id, "project_id": project_id}
    addresses = {"grpc": grpc, "http": http, "tls": tls, "redirector": redirector, "gateway": gateway}
    _write(settings.server_file, {**ready, **addresses})


def _write(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=2)
    partial.replace(path)
