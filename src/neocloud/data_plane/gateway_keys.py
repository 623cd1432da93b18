"""The keys that authenticate the gateways to the control plane.

The control plane makes a file with a key for each gateway, which calls on behalf of others. Anyone who can
read the key can look up the owner of any token, so only the owner of the file may read it.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.core.osfiles import create_file

KEY_BYTES = 32
KEY_HEADER = "x-neocloud-gateway-key"
CLIENT_HEADER = "x-neocloud-client-address"
"""Where the client of the gateway is on whose behalf it calls; counts only beside the key."""


@dataclass(frozen=True)
class GatewayKey:
    value: str = field(repr=False)

    def is_shown(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call with these headers carries the key."""
        return hmac.compare_digest(self.value.encode(), headers.get(KEY_HEADER, "").encode())


class ObjectGatewayKey(GatewayKey):
    """The key of the object gateway. Neither gateway may call what is the other one's."""


def gateway_folder(home: Path) -> Path:
    """Return the folder that the gateway owns."""
    return home / "gateway"


def gateway_key_file(home: Path) -> Path:
    return gateway_folder(home) / "key"


def load_or_make_gateway_key(home: Path) -> GatewayKey:
    """Return the key in the home folder, a new one when there is none."""
    return GatewayKey(load_or_make_key(gateway_key_file(home)))


def object_gateway_folder(home: Path) -> Path:
    """Return the folder that the object gateway owns; the store of the objects is in it."""
    return home / "objects"


def object_gateway_key_file(home: Path) -> Path:
    return object_gateway_folder(home) / "key"


def load_or_make_object_gateway_key(home: Path) -> ObjectGatewayKey:
    """Return the key in the home folder, a new one when there is none."""
    return ObjectGatewayKey(load_or_make_key(object_gateway_key_file(home)))


def load_or_make_key(path: Path) -> str:
    """Return a key as text without spaces, as headers carry it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        create_file(path, secrets.token_urlsafe(KEY_BYTES))
    key = path.read_text().strip()
    if path.stat().st_mode & 0o077 or len(key) < KEY_BYTES:
        raise OSError(f"The key {path} is damaged or open to others. Remove it; a new one is made.")
    return key
