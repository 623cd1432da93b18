"""The keys of encrypted disks, which only QEMU's own programs get, and never as an argument.

A disk is a qcow2 file whose content is encrypted with LUKS. The Secret of the machine has a file for each
key. A program gets a key in a file that lies in memory, has no name and is inherited as an open descriptor;
QEMU while it runs gets it on its control socket.
"""

import os
import re
from pathlib import Path
from typing import Any

from launcher import rights

KEY_PREFIX = "key-"
"""Begins the name of a key's file, and of QEMU's object of the key; the id of the disk follows."""
_KEY = re.compile(rb"[0-9a-f]{64}")
_CIPHER = {"cipher-alg": "aes-256", "cipher-mode": "xts", "ivgen-alg": "plain64", "hash-alg": "sha256"}
_DERIVATION_MS = 10
"""A key is random and not derived from a password, so that a slow derivation would protect nothing."""


class KeyMissing(Exception):
    """The message names the disk."""


def read_key(folder: Path, disk_id: str) -> str:
    """Return the key of a disk from the folder of the machine's Secret."""
    try:
        content = (folder / f"{KEY_PREFIX}{disk_id}").read_bytes()
    except OSError as error:
        raise KeyMissing(f"The key of disk {disk_id} cannot be read: {error.strerror}.") from None
    if not _KEY.fullmatch(content):
        raise KeyMissing(f"The key of disk {disk_id} is not one of this cloud.")
    return content.decode()


def open_key(key: str) -> int:
    """Return a descriptor of a file in memory with the key, which QEMU's user may read."""
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    os.write(descriptor, key.encode())
    rights.give_open(descriptor, 0o400)
    return descriptor


def key_name(disk_id: str) -> str:
    """Return the name of QEMU's object with the key of a disk."""
    return f"{KEY_PREFIX}{disk_id}"


def inherited_key(disk_id: str, descriptor: int) -> dict[str, Any]:
    """Return the argument of `--object` for a key that the program inherits as a descriptor."""
    file = f"/proc/self/fd/{descriptor}"
    return {"qom-type": "secret", "id": key_name(disk_id), "format": "raw", "file": file}


def sent_key(disk_id: str, key: str) -> dict[str, Any]:
    """Return the argument of `object-add` for a key that is sent on QEMU's control socket."""
    return {"qom-type": "secret", "id": key_name(disk_id), "format": "raw", "data": key}


def creation_options(disk_id: str) -> str:
    """Return qemu-img's `-o` for a new encrypted file."""
    options = {"format": "luks", "key-secret": key_name(disk_id), "iter-time": _DERIVATION_MS, **_CIPHER}
    return ",".join(f"encrypt.{name}={value}" for name, value in options.items())


def decryption(disk_id: str) -> dict[str, str]:
    """Return how a block node of the file is decrypted."""
    return {"format": "luks", "key-secret": key_name(disk_id)}
