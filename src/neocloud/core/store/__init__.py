"""Where everything durable lies: one protocol, SQLite or PostgreSQL behind it.

Imported from here by the rest: `open_store`, `load_or_make_key` and the types of `protocol`.
"""

from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.opening import open_store
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
from neocloud.core.store.vault import load_or_make_key

__all__ = [
    "AlreadyExists",
    "AuditEvent",
    "HistoryEntry",
    "HistorySizes",
    "IdempotencyKey",
    "Lease",
    "LeaseLost",
    "Mark",
    "OperationRow",
    "Page",
    "Resource",
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
