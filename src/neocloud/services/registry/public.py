"""The interface of registries for other services, which run images and copy the files of artifacts, as
the account that asked for it. Pure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO, Protocol

from neocloud.core import digests
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Transaction
from neocloud.engines.images import ImageSettings
from neocloud.messages.nebius.common.v1 import ResourceMetadata

MAX_NAME = 255
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"({_PART})/({_PART}(?:/{_PART})*)(?::([A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@({digests.PATTERN}))?"
)


class PullProblem(StrEnum):
    MISSING = "missing"
    FORBIDDEN = "forbidden"
    UNUSABLE = "unusable"
    """It is not an image that this machine can run."""
    TOO_LARGE = "too large"
    UNANSWERED = "unanswered"
    """The gateway does not run, or the answer was cut off; another try may succeed."""


class CannotPull(Exception):
    """An image cannot be pulled; the message says why, and what to do."""

    def __init__(self, problem: PullProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True)
class ImageName:
    """An image in a registry of this cloud."""

    registry: str
    """The id of the registry without its prefix, as names of images have it."""
    repository: str
    reference: str
    """A tag, or a digest."""

    @property
    def is_pinned(self) -> bool:
        return ":" in self.reference

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}{'@' if self.is_pinned else ':'}{self.reference}"


def image_name(text: str) -> ImageName | None:
    """Return the image that a name without host and port names; None for any other text."""
    found = _IMAGE.fullmatch(text)
    if found is None or len(f"{found[1]}/{found[2]}") > MAX_NAME:
        return None
    return ImageName(found[1], found[2], found[4] or found[3] or "latest")


@dataclass(frozen=True)
class FoundImage:
    """An image that can be pulled now, with what to pull it by."""

    source: str
    """Host, port, repository and the digest of the image for this machine."""
    username: str
    password: str = field(repr=False)
    settings: ImageSettings


@dataclass(frozen=True)
class ArtifactFile:
    """A file of an artifact, which is a blob of its repository."""

    name: str
    """The name of a file, which leads nowhere else."""
    digest: str
    size_bytes: int


class ImagePulls(Protocol):
    """Pulls images and other artifacts for the resources of other services, as the account that made the
    resource.

    The right is checked twice: of the caller when the resource is made, and of the account, by the object
    gateway, at each pull. A resource uses registries of its own tenant.
    """

    def name_of(self, image: str) -> ImageName | None:
        """Return the image of a registry that `image` names; None where it begins with no registry's address.
        Raises ValueError, with words, for one that cannot be read."""
        ...

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, name: ImageName
    ) -> None:
        """Let a new resource pull this image as the subject. Raises ApiError unless the subject may, and
        where the tenant has no such registry."""
        ...

    async def image_of(self, resource_id: str) -> ImageName | None:
        """Return the image that the resource was allowed; None where it was allowed none."""
        ...

    async def digest(self, resource_id: str) -> str:
        """Return the digest of the image that the resource was allowed: what its tag is for now. Raises
        CannotPull."""
        ...

    async def find(self, resource_id: str, digest: str, size_bytes: int) -> FoundImage:
        """Return the image of this digest with a key that pulls it for some minutes. Raises CannotPull, also
        for an image whose layers take more than `size_bytes`, and for one that this machine cannot run."""
        ...

    async def files(self, resource_id: str, digest: str = "") -> tuple[str, Sequence[ArtifactFile]]:
        """Return the digest of the artifact that the resource was allowed, and its files. `digest` is one
        that was returned before; "": what its tag is for now. Raises CannotPull, also for what is no artifact
        of files."""
        ...

    async def fetch(self, resource_id: str, file: ArtifactFile, target: BinaryIO) -> None:
        """Write a file of the artifact to an empty file. The right is asked for again, length and digest are
        compared. Raises CannotPull; OSError."""
        ...
