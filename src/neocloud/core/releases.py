"""Compatibility of releases of `neo` and of a server: the same one, and the ones next to it.

A release is MAJOR.MINOR of a version. `neo` names its version in each call, with the oldest release that it
works with, and the server names its own version in the answer to such a call. So the server refuses before it
does anything, also where only the newer side can know. Other clients name none and are never refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

HEADER = "x-neocloud-release"
"""Metadata with a version of Neocloud, of a call and of its answer."""
OLDEST_HEADER = "x-neocloud-oldest-release"
"""Metadata of a call with the oldest release of a server that its client works with."""
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

    @property
    def oldest_partner(self) -> "Release":
        """The oldest release that this one works with, as far as this code knows."""
        if self.minor or not self.major:
            return Release(self.major, max(self.minor - 1, 0))
        last = LAST_MINORS.get(self.major - 1)
        return self if last is None else Release(self.major - 1, last)

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


def stated(version: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call by a client of this version; none for ""."""
    release = Release.of(version)
    oldest = ((OLDEST_HEADER, str(release.oldest_partner)),) if release else ()
    return ((HEADER, version), *oldest) if version else ()


def refusal_by_server(headers: Mapping[str, str], version: str) -> Refusal | None:
    """Return why a server of this version does not work with the client that sent these headers, or None.

    Whether a server is of the last MINOR before a client's first one is known to the client alone: where it
    does not say so, it is refused.
    """
    client, server = Release.of(headers.get(HEADER, "")), Release.of(version)
    if client is None or server is None:
        return None
    oldest = Release.of(headers.get(OLDEST_HEADER, ""))
    is_of_next_major = client.major > server.major
    if client.works_with(server) and (not is_of_next_major or (oldest is not None and oldest <= server)):
        return None
    return _refusal(client, server)


def refusal(client_version: str, server_version: str) -> Refusal | None:
    """Return why these versions do not work together; None when they do, or when one of them is unknown."""
    client, server = Release.of(client_version), Release.of(server_version)
    if client is None or server is None or client.works_with(server):
        return None
    return _refusal(client, server)


def _refusal(client: Release, server: Release) -> Refusal:
    next_step = f"Install that of the cloud: pip install 'neocloud=={server}.*'"
    if client > server:
        next_step += f"; or upgrade the cloud: run `neo up` of release {client} on its machine"
    return Refusal(
        f"This `neo` is release {client} and the cloud runs release {server}; they may be one release apart,"
        " not more",
        next_step,
    )
