"""Types of registries of container images. Nothing here knows HTTP or SQL.

A digest is text: "sha256:" or "sha512:", and hexadecimal digits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

MAX_MANIFEST_BYTES = 4 * 1024**2
MAX_TAGS_PAGE = 10_000


@dataclass(frozen=True)
class NewManifest:
    """A manifest that is pushed, as far as the registry has to understand it."""

    digest: str
    media_type: str
    size: int
    artifact_type: str = ""
    subject: str | None = None
    """The digest of the manifest that this one is about; it need not exist."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    blobs: tuple[str, ...] = ()
    """The digests of what a manifest names and is not a manifest, such as config and layers: they have to be
    there."""
    manifests: tuple[str, ...] = ()
    """The manifests that an index names; they have to exist."""
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """How large each of them is, by its digest, as the manifest says."""
    image_bytes: int = 0
    """The manifest with all that it names, as it says itself."""


@dataclass(frozen=True)
class Manifest:
    id: str
    """The id of the artifact in the API of the cloud."""
    repository: str
    digest: str
    media_type: str
    artifact_type: str
    size: int
    subject: str | None
    annotations: Mapping[str, str]
    created_at: datetime
    updated_at: datetime
    """When it was pushed last, or a tag set on it."""


@dataclass(frozen=True)
class ManifestPage:
    manifests: tuple[Manifest, ...]
    next_after: int
    """Pass it as `after` to continue; 0 on the last page."""


@dataclass(frozen=True)
class TagPage:
    tags: tuple[str, ...]
    """Sorted by their characters."""
    is_truncated: bool


@dataclass(frozen=True)
class BlobUpload:
    """A blob that is being received."""

    id: str
    size: int
    """Bytes that are there."""
    chunks: int


@dataclass(frozen=True)
class RemovedImage:
    """An image that a rule has removed."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    """The first of those that it had."""


@dataclass(frozen=True)
class RemovedImages:
    """The images that the rules of a registry have removed."""

    total: int
    """Since the registry was made. Parts of an image are not counted."""
    last_at: datetime
    last: tuple[RemovedImage, ...]
    """The first of those that went together at that time."""
