"""The keys of disks, which are encrypted at rest with LUKS.

A disk gets a random key before its volume exists. The key lies in the store beside the disk, sealed like all
secrets there, and is deleted with it. A snapshot or image is a copy of the disk's file and has the same key,
as has a disk that is created from it. A mark that is no secret tells a disk whose key is lost from one of an
earlier release, which is not encrypted and stays so.
"""

import secrets
from collections.abc import Iterable

from neocloud.core.reconcile.reconciler import Context, Failed
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.compute.types import DiskReason

KEY_BYTES = 32
_KEY, _MARK, _LUKS = "disk-key", "disk-encryption", b"luks"
ENCRYPTED = "What is written to it is encrypted (LUKS)."
NOT_ENCRYPTED = (
    "Not encrypted: an earlier release created it. Take a snapshot, and create a disk from it, which is "
    "encrypted by the first machine that uses it."
)


def is_encrypted(tx: Transaction, volume_id: str) -> bool:
    """Return whether this disk, snapshot or image is encrypted, also if its key is lost."""
    return tx.secret(volume_id, _MARK) is not None


def disk_key(tx: Transaction, volume_id: str) -> str:
    """Return the key, empty for a volume without encryption. Raises Failed if the key is lost."""
    key = tx.secret(volume_id, _KEY)
    if key is not None:
        return key.decode()
    if is_encrypted(tx, volume_id):
        raise Failed(
            DiskReason.KEY_LOST,
            f"The key of {volume_id} is lost, and its data cannot be read without it. Restore the state of "
            "the cloud from a backup that has the key, or delete it.",
        )
    return ""


async def disk_keys(store: Store, disk_ids: Iterable[str]) -> dict[str, str]:
    """Return the keys of these disks by id, without those that are not encrypted."""
    wanted = tuple(disk_ids)
    found = await store.read(lambda tx: {disk_id: disk_key(tx, disk_id) for disk_id in wanted})
    return {disk_id: key for disk_id, key in found.items() if key}


async def ensure_key(context: Context, store: Store, source_id: str = "") -> None:
    """Give the volume the key of what it is a copy of, or a new one if that has none."""
    key = await store.read(lambda tx: disk_key(tx, source_id)) if source_id else ""
    await _keep(context, key or secrets.token_hex(KEY_BYTES))


async def ensure_key_of_copy(context: Context, store: Store, source_id: str) -> None:
    """Give the volume the key of what it is a copy of, and none if that has none."""
    if key := await store.read(lambda tx: disk_key(tx, source_id)):
        await _keep(context, key)


async def _keep(context: Context, key: str) -> None:
    """Store the key if there is none, then the mark: a worker that is killed between them repeats both."""
    await context.secret(_KEY, key.encode)
    await context.secret(_MARK, lambda: _LUKS)
