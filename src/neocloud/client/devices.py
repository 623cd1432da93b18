# pyright: strict
"""Device tokens, which identify this client to clouds where a user has signed in with a password.

A device token grants no access; sent with the next password, it keeps other people's wrong guesses from
locking the owner out. All are in one file that only its owner can read. A damaged file is not an error: the
tokens are lost.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import cast

from neocloud.client.profiles import config_file
from neocloud.core.osfiles import make_private_parents, write_file


def device_token(endpoint: str, email: str) -> str:
    """Return the token of the last sign-in there; "" if there was none."""
    return _read().get(_key(endpoint, email), "")


def keep_device_token(endpoint: str, email: str, token: str) -> None:
    """Save a token. A folder that cannot be written is not an error, because sign-ins work without it."""
    known = _read() | {_key(endpoint, email): token}
    path = _file()
    with suppress(OSError):
        make_private_parents(path)
        write_file(path, json.dumps(known))


def _read() -> dict[str, str]:
    with suppress(OSError, ValueError):
        known = json.loads(_file().read_text())
        if isinstance(known, dict):
            items = cast("dict[str, object]", known).items()
            return {key: value for key, value in items if isinstance(value, str)}
    return {}


def _key(endpoint: str, email: str) -> str:
    return f"{endpoint} {email.strip().casefold()}"


def _file() -> Path:
    return config_file().parent / "devices.json"
