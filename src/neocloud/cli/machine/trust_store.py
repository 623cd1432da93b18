"""The certificate authorities that this machine's programs trust, as the distributions keep them.

Adds and removes one file of ours and runs the distribution's own update program. It touches nothing else.
"""

import os
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from neocloud.client.errors import ClientError

FILE_NAME = "neocloud.crt"


@dataclass(frozen=True)
class TrustStore:
    folder: Path
    update: tuple[str, ...]
    bundle: Path


STORES = (
    TrustStore(
        Path("/usr/local/share/ca-certificates"),
        ("update-ca-certificates",),
        Path("/etc/ssl/certs/ca-certificates.crt"),
    ),
    TrustStore(
        Path("/etc/pki/ca-trust/source/anchors"),
        ("update-ca-trust",),
        Path("/etc/pki/tls/certs/ca-bundle.crt"),
    ),
)


def add(authority: Path) -> Path:
    """Trust it; the file that was added. May be repeated."""
    store = _store()
    path = store.folder / FILE_NAME
    try:
        path.write_bytes(authority.read_bytes())
        path.chmod(0o644)
    except OSError as error:
        raise _not_changed(store, error.strerror or str(error)) from error
    _update(store)
    return path


def remove() -> bool:
    """Trust it no more; False when it was not trusted."""
    store = _store()
    path = store.folder / FILE_NAME
    if not path.exists():
        return False
    try:
        path.unlink()
    except OSError as error:
        raise _not_changed(store, error.strerror or str(error)) from error
    _update(store)
    return True


def trusts(authority: Path) -> bool:
    """Return whether the certificate bundle that programs read holds exactly this authority."""
    try:
        wanted = authority.read_text().strip()
        return any(wanted in store.bundle.read_text() for store in STORES if store.bundle.exists())
    except OSError:
        return False


def _store() -> TrustStore:
    for store in STORES:
        if store.folder.is_dir():
            return store
    known = ", ".join(str(store.folder) for store in STORES)
    raise ClientError(
        "FAILED_PRECONDITION",
        f"No known certificate store was found on this machine ({known})",
        f"Add the certificate by hand; Python reads {ssl.get_default_verify_paths().openssl_cafile}",
    )


def _update(store: TrustStore) -> None:
    try:
        done = subprocess.run(
            store.update, capture_output=True, text=True, check=False, env=os.environ, umask=0o022
        )
    except FileNotFoundError as error:
        raise _not_changed(store, f"{store.update[0]} is not installed") from error
    if done.returncode:
        raise _not_changed(store, done.stderr.strip() or f"{store.update[0]} failed")


def _not_changed(store: TrustStore, why: str) -> ClientError:
    return ClientError(
        "PERMISSION_DENIED",
        f"The trusted authorities in {store.folder} could not be changed: {why}",
        "Run it again as root",
    )
