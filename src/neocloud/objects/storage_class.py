# pyright: strict
"""Storage classes of nebius.storage.v1 whose objects lie in the object store."""

from enum import StrEnum


class StorageClass(StrEnum):
    STANDARD = "STANDARD"
    ENHANCED_THROUGHPUT = "ENHANCED_THROUGHPUT"
    INTELLIGENT = "INTELLIGENT"
