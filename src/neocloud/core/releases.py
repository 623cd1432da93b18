# pyright: strict
"""Which releases of `neo` and of a server work together: the same one, and the ones next to it.

A release is MAJOR.MINOR of a version. `neo` names its version in each call, and the server names its own in
the answer to such a call, so that either side can refuse. Other clients name none and are never refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

HEADER = "x-neocloud-release"
"""Metadata with a version of Neocloud, of a call and of its answer."""
MAX_VERSION_CHARS = 64
"""A longer header counts as none."""
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:[.+_a-z-][.+_a-z0-9-]*)?", re.IGNORECASE | re.ASCII)
LAST_MINORS: Mapping[int, int] = {}
"""The last MINOR of each earlier MAJOR, so that a first MINOR has a release before it."""


@dataclass(frozen=True, order=True)
class Release:
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def of(cls, version: str) -> "Release | None":
        """Return the release of a version; None for a text that is none, whatever it holds."""
        found = _VERSION.fullmatch(version) if len(version) <= MAX_VERSION_CHARS else None
        return cls(int(found[1]), int(found[2])) if found else None

    def works_with(self, other: "Release") -> bool:
        older, newer = sorted((self, other))
        if older.major == newer.major:
            return newer.minor - older.minor <= 1
        # The older release does not know whether it is the last of its MAJOR: the newer one decides.
        is_next_major = (newer.major, newer.minor) == (older.major + 1, 0)
        return is_next_major and LAST_MINORS.get(older.major, older.minor) == older.minor


@dataclass(frozen=True)
class Refusal:
    """Why `neo` and a server do not work together."""

    message: str
    next_step: str


def refusal(client_version: str, server_version: str) -> Refusal | None:
    """Return why these versions do not work together; None when they do, or when one of them is unknown."""
    client, server = Release.of(client_version), Release.of(server_version)
    if client is None or server is None or client.works_with(server):
        return None
    next_step = f"Install that of the cloud: pip install 'neocloud=={server}.*'"
    if client > server:
        next_step += f"; or upgrade the cloud: run `neo up` of release {client} on its machine"
    return Refusal(
        f"This `neo` is release {client} and the cloud runs release {server}; they may be one release apart,"
        " not more",
        next_step,
    )
