"""The store of everything durable: one protocol, implemented on SQLite and PostgreSQL.

Other packages import `open_store`, `load_or_make_key` and the types of `protocol` from here.
"""

import asyncio
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.event_log import Archive, LogEvent, Snapshot
from neocloud.core.store.postgres import PostgresStore
from neocloud.core.store.protocol import (
    AlreadyExists,
    HistoryEntry,
    HistorySizes,
    IdempotencyKey,
    Lease,
    LeaseLost,
    Mark,
    OperationRow,
    Page,
    Resource,
    StaleVersion,
    Store,
    StoreError,
    Transaction,
    Watcher,
    watched_by,
)
from neocloud.core.store.rows import entry_bytes
from neocloud.core.store.sqlite import MemoryStore, SqliteStore
from neocloud.core.store.vault import Vault, load_or_make_key

__all__ = [
    "AlreadyExists",
    "Archive",
    "AuditEvent",
    "HistoryEntry",
    "HistorySizes",
    "IdempotencyKey",
    "Lease",
    "LeaseLost",
    "LogEvent",
    "Mark",
    "OperationRow",
    "Page",
    "Resource",
    "Snapshot",
    "Store",
    "StaleVersion",
    "StoreError",
    "Transaction",
    "Watcher",
    "entry_bytes",
    "load_or_make_key",
    "open_store",
    "watched_by",
]


async def open_store(
    address: str | Path, secret_key: bytes, clock: Clock, *, watch: Watcher | None = None
) -> Store:
    """Open the store at an address.

    A path means a SQLite file, ":memory:" a SQLite database in memory, a postgresql:// URL PostgreSQL.

    `watch` is called with every change of a resource. Raises StoreError when the store cannot be opened or
    was made by a newer release.
    """
    if address == ":memory:":
        return MemoryStore(clock, Vault(secret_key), watch)  # in this thread, where it will be used
    return await asyncio.to_thread(_open, str(address), clock, Vault(secret_key), watch)


def _open(address: str, clock: Clock, vault: Vault, watch: Watcher | None) -> Store:
    if address.startswith("postgresql://"):
        return PostgresStore(address, clock, vault, watch)
    return SqliteStore(Path(address), clock, vault, watch)
