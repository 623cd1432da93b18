"""The state folder of a running server: its lock, and the files that it writes for clients."""

import json
import logging
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress

from neocloud import __version__
from neocloud.control_plane.server_supervisor import ended_file
from neocloud.control_plane.settings_file import shown_document
from neocloud.core import announcements
from neocloud.core.announcements import Announcement
from neocloud.core.osfiles import Locked, ensure_private, take_lock, write_file
from neocloud.core.process import began
from neocloud.server import Addresses
from neocloud.settings.settings import Settings

logger = logging.getLogger(__name__)


class HomeInUse(Exception):
    """Another server runs on this state folder."""


@contextmanager
def locked(settings: Settings) -> Generator[None, None, None]:
    """Lock the state folder; the kernel unlocks it even when this process is killed. Raises HomeInUse, and
    OpenFolder when other users may enter it."""
    ensure_private(settings.home)
    try:
        lock = take_lock(settings.lock_file)
    except Locked as error:
        raise HomeInUse(
            f"A server runs on {settings.home} already (pid {error.holder})."
            " Use it, or stop it with: neo down"
        ) from None
    try:
        yield
    finally:
        lock.release()


def held_credentials(settings: Settings) -> dict[str, object] | None:
    """Return the first service account's credentials from an earlier start."""
    with suppress(FileNotFoundError, ValueError):
        return json.loads(settings.credentials_file.read_text())
    return None


def last_addresses(settings: Settings) -> Addresses | None:
    """Return where the server of this folder listened last, so that clients find the next one there."""
    with suppress(OSError, ValueError, TypeError):
        return Addresses(**json.loads(settings.addresses_file.read_text()))
    return None


def announce(
    settings: Settings,
    *,
    grpc: str,
    http: str,
    credentials: Mapping[str, object],
    tenant_id: str,
    project_id: str,
    tls: str = "",
    redirector: str = "",
    gateway: str = "",
    s3: str = "",
    s3_tls_port: int = 0,
    listen: Sequence[str] = (),
    https_port: int = 0,
    collectors: str = "",
    gateway_tls_port: int = 0,
    login_addresses: Sequence[str] = (),
) -> None:
    """Write what clients need; server.json last, since its presence means ready."""
    ids = {"tenant-id": tenant_id, "project-id": project_id}
    write_file(settings.credentials_file, json.dumps({**credentials, "endpoint": grpc, **ids}, indent=2))
    ready = {"pid": os.getpid(), "version": __version__, "tenant_id": tenant_id, "project_id": project_id}
    addresses = {"grpc": grpc, "http": http, "tls": tls, "redirector": redirector, "collectors": collectors}
    write_file(settings.addresses_file, json.dumps({**addresses, "https_port": https_port}, indent=2))
    public = {"gateway": gateway, "listen": list(listen), "https_port": https_port}
    public |= {"gateway_tls_port": gateway_tls_port, "s3": s3, "s3_tls_port": s3_tls_port}
    public |= {"settings": shown_document(settings)}
    public |= {"login_addresses": list(login_addresses), "login_ports": list(settings.login_ports)}
    write_file(settings.server_file, json.dumps({**ready, **addresses, **public}, indent=2))
    _announce_to_all(Announcement(str(settings.home), grpc, http, gateway))


def _announce_to_all(announcement: Announcement) -> None:
    try:
        announcements.announce(announcement)
    except OSError as error:
        logger.warning("Other accounts of this machine do not find the cloud by themselves: %s", error)


def withdraw(settings: Settings) -> None:
    """Announce no longer that a server runs."""
    settings.server_file.unlink(missing_ok=True)
    announcements.withdraw(settings.home)


def note_end(settings: Settings) -> None:
    """Note that this server ends on request; a supervisor that adopted it does not restart it."""
    note = {"pid": os.getpid(), "began": began(os.getpid())}
    try:
        write_file(ended_file(settings.home), json.dumps(note))
    except OSError as error:
        logger.warning("Cannot note the end of the server, which may be started again: %s", error)
