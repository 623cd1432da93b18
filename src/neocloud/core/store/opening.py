"""Which store an address means."""

import asyncio
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.core.store.postgres import PostgresStore
from neocloud.core.store.protocol import Store, Watcher
from neocloud.core.store.sqlite import MemoryStore, SqliteStore
from neocloud.core.store.vault import Vault


async def open_store(
    address: str | Path, secret_key: bytes, clock: Clock, *, watch: Watcher | None = None
) -> Store:
    """A path means a SQLite file, ":memory:" a SQLite gone with the process, a postgresql:// URL PostgreSQL.
    `watch` is told of every change of a resource.

    Raises StoreError, in words for people, when it cannot be opened or was made by a newer release.
    """
    if address == ":memory:":
        return MemoryStore(clock, Vault(secret_key), watch)  # in this thread, where it will be used
    return await asyncio.to_thread(_open, str(address), clock, Vault(secret_key), watch)


def _open(address: str, clock: Clock, vault: Vault, watch: Watcher | None) -> Store:
    if address.startswith("postgresql://"):
        return PostgresStore(address, clock, vault, watch)
    return SqliteStore(Path(address), clock, vault, watch)
