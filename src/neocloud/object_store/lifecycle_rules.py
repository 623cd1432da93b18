"""Lifecycle rules of buckets, as nebius.storage.v1.LifecycleConfiguration has them, and of registries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from neocloud.object_store.storage_class import StorageClass


@dataclass(frozen=True)
class LifecycleFilter:
    """All that is given has to match."""

    prefix: str = ""
    larger_than: int | None = None
    """Size in bytes; the limit is exclusive."""
    smaller_than: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Transition:
    storage_class: StorageClass
    date: datetime | None = None
    days: int | None = None
    days_since_last_access: int | None = None
    """They count from the creation of an object that was never read."""


@dataclass(frozen=True)
class LifecycleRule:
    """Days count from the creation of the object (noncurrent: from when it was replaced) to the next midnight
    in UTC after them."""

    id: str
    is_enabled: bool = True
    filter: LifecycleFilter = LifecycleFilter()
    expire_at: datetime | None = None
    """Current objects expire from then on."""
    expire_days: int | None = None
    expire_lone_delete_markers: bool = False
    """Remove delete markers that have no noncurrent versions."""
    noncurrent_days: int | None = None
    noncurrent_kept: int = 0
    """So many of the newest noncurrent versions stay."""
    abort_upload_days: int | None = None
    transition: Transition | None = None
    noncurrent_transition_days: int | None = None
    noncurrent_transition_kept: int = 0
    noncurrent_transition_class: StorageClass | None = None


@dataclass(frozen=True)
class ImageRules:
    """Rules for the removal of a registry's images, and the images that it takes."""

    keep_last: int = 0
    """So many of the images with a tag that were pushed last stay in each repository; 0: all."""
    untagged_days: int = 0
    """An image goes when nothing has used it for so long: no tag, no index; 0: never."""
    allows_sparse: bool = False
    """Manifests may name blobs and manifests that are not there."""

    @property
    def is_any(self) -> bool:
        """Return whether images go by themselves."""
        return bool(self.keep_last or self.untagged_days)
