"""Announce the addresses of this machine's clouds to its other accounts, in files in `/run/neocloud`.

The state folder of a cloud is closed to all but its owner. A server that root runs therefore announces its
addresses, which are no secret, in a file that everybody may read. A reader trusts what root wrote, and only
while root listens at the address: an account that took the port of a cloud that has stopped would otherwise
be sent the passwords of others.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from neocloud.core.json_values import as_object
from neocloud.core.osfiles import make_folder, write_file

FOLDER = Path("/run/neocloud")
ROOT = 0
_MOST_BYTES = 64 * 1024
_LISTENING = "0A"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


@dataclass(frozen=True)
class Announcement:
    """The addresses of a cloud on this machine, each host:port or ""."""

    home: str
    grpc: str
    http: str
    gateway: str = ""


def file_of(home: Path, folder: Path | None = None) -> Path:
    return (folder or FOLDER) / f"{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}.json"


def announce(announcement: Announcement, folder: Path | None = None) -> Path | None:
    """Write the file, for a server of root; others announce nothing. Raises OSError."""
    if os.geteuid() != ROOT:
        return None
    path = file_of(Path(announcement.home), folder)
    make_folder(path.parent)
    write_file(path, json.dumps(asdict(announcement)), 0o644)
    return path


def withdraw(home: Path, folder: Path | None = None) -> None:
    with suppress(OSError):
        file_of(home, folder).unlink(missing_ok=True)


def read(path: Path) -> Announcement | None:
    """Return what root announces in this file and serves now; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != ROOT or found.st_mode & 0o022:
            return None
        try:
            document: object = json.loads(file.read(_MOST_BYTES))
        except ValueError:
            return None
    given = [as_object(document).get(name, "") for name in ("home", "grpc", "http", "gateway")]
    values = [value for value in given if isinstance(value, str)]
    if len(values) < len(given):
        return None
    announcement = Announcement(*values)
    return announcement if is_served_by_root(announcement.grpc) else None


def announced(folder: Path | None = None) -> Sequence[tuple[Path, Announcement]]:
    """Return the clouds of this machine that run now, by their state folders."""
    try:
        paths = sorted((folder or FOLDER).glob("*.json"))
    except OSError:
        return ()
    found = [(path, announcement) for path in paths if (announcement := read(path)) is not None]
    return sorted(found, key=lambda each: each[1].home)


def is_served_by_root(address: str, tables: Sequence[Path] = _TABLES) -> bool:
    """Return whether root, and nobody else, listens at this address of loopback."""
    host, _, port = address.rpartition(":")
    try:
        found = ip_address(host.strip("[]"))
        if not found.is_loopback:
            return False
        places = _places(found)
        owners = {owner for at, of, owner in _listeners(tables) if at in places and of == int(port)}
    except ValueError:
        return False
    return owners == {ROOT}


def _places(address: IPv4Address | IPv6Address) -> frozenset[str]:
    """Return the addresses at which a socket that answers for this one listens, as the kernel's tables write
    them. One at another address of loopback takes no connection to this one."""
    words = [address.packed[start : start + 4] for start in range(0, len(address.packed), 4)]
    written = "".join(word[::-1].hex().upper() for word in words)
    mapped = {f"0000000000000000FFFF0000{written}"} if address.version == 4 else set[str]()
    return frozenset({written, "0" * 8, "0" * 32, "0000000000000000FFFF000000000000", *mapped})


def _listeners(tables: Sequence[Path]) -> Iterator[tuple[str, int, int]]:
    """(address, port, user id) of each listening socket, from the kernel's tables."""
    for table in tables:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == _LISTENING:
                    at, _, port = columns[1].rpartition(":")
                    yield at, int(port, 16), int(columns[7])
