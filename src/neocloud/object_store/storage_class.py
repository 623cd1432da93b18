"""Storage classes of nebius.storage.v1."""

from enum import StrEnum


class StorageClass(StrEnum):
    STANDARD = "STANDARD"
    ENHANCED_THROUGHPUT = "ENHANCED_THROUGHPUT"
    INTELLIGENT = "INTELLIGENT"
    FILESYSTEM = "FILESYSTEM"
    """Objects of filesystem buckets, and no others."""


SELECTABLE = tuple(each for each in StorageClass if each is not StorageClass.FILESYSTEM)
"""Classes that clients may ask for."""
