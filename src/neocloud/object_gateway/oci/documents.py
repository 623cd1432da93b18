"""Manifests and indexes as clients write them: hostile JSON of at most 4 MiB."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from neocloud.core import digests
from neocloud.object_gateway.oci.errors import RegistryError
from neocloud.object_store.image_types import MAX_MANIFEST_BYTES, NewManifest

MAX_NAMED = 4096
"""Blobs or manifests that one manifest may name."""
_MAX_SIZE = 1 << 50
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_IMAGES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEXES = (OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
ACCEPTED = (*_IMAGES, *INDEXES)
"""The media types of manifests that are taken."""
_Kind = TypeVar("_Kind")
_ELSEWHERE = ("nondistributable", "foreign")
"""Words in the media types of layers that a registry need not have."""


class _Descriptor(msgspec.Struct, frozen=True):
    media_type: str = msgspec.field(name="mediaType")
    digest: str
    size: Annotated[int, msgspec.Meta(ge=0, le=_MAX_SIZE)]
    urls: object = None

    def __post_init__(self) -> None:
        if not digests.is_digest(self.digest):
            raise ValueError("a descriptor has mediaType, a digest of sha256 or sha512, and size")


_Descriptors = Annotated[tuple[_Descriptor, ...], msgspec.Meta(max_length=MAX_NAMED)]


class _Document(msgspec.Struct):
    schema_version: Literal[2] = msgspec.field(name="schemaVersion")
    media_type: str | None = msgspec.field(name="mediaType", default=None)
    artifact_type: Annotated[str, msgspec.Meta(max_length=255)] = msgspec.field(
        name="artifactType", default=""
    )
    subject: _Descriptor | None = None
    annotations: dict[str, str] | None = None


class _Image(_Document, kw_only=True):
    config: _Descriptor
    layers: _Descriptors = ()


class _Index(_Document):
    manifests: _Descriptors = ()


def read_manifest(body: bytes, content_type: str, algorithm: str = digests.DEFAULT) -> NewManifest:
    """`algorithm` is that of its digest. Raises RegistryError."""
    if len(body) > MAX_MANIFEST_BYTES:
        raise too_large()
    header = content_type.partition(";")[0].strip()
    found = _decoded(body, _Document)
    media_type = header or found.media_type or ""
    if media_type not in ACCEPTED:
        raise _invalid(f"must have a Content-Type of {', '.join(ACCEPTED)}")
    if found.media_type not in (None, media_type):
        raise _invalid("has another mediaType than the Content-Type of the request")
    artifact_type, named = found.artifact_type, list[_Descriptor]()
    if media_type in INDEXES:
        described = _decoded(body, _Index).manifests
        named = [each for each in described if each.media_type in ACCEPTED]
        blobs = [each for each in described if not (each.media_type in ACCEPTED or _is_elsewhere(each))]
    else:
        image = _decoded(body, _Image)
        blobs = [each for each in image.layers if not _is_elsewhere(each)] + [image.config]
        artifact_type = artifact_type or image.config.media_type
    return NewManifest(
        digest=digests.digest_of(body, algorithm),
        media_type=media_type,
        size=len(body),
        artifact_type=artifact_type,
        subject=found.subject and found.subject.digest,
        annotations=found.annotations or {},
        blobs=tuple(each.digest for each in blobs),
        manifests=tuple(each.digest for each in named),
        sizes=_sizes([*blobs, *named]),
        image_bytes=min(_MAX_SIZE, len(body) + sum(each.size for each in blobs)),
    )


def _decoded(body: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:  # those of msgspec are ValueErrors
        raise _invalid(f"cannot be read: {str(error)[:300]}") from None


def _sizes(described: Sequence[_Descriptor]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for each in described:
        if found.setdefault(each.digest, each.size) != each.size:
            raise _invalid(f"gives {each.digest} two sizes")
    return found


def _is_elsewhere(descriptor: _Descriptor) -> bool:
    return bool(descriptor.urls) and any(each in descriptor.media_type for each in _ELSEWHERE)


def _invalid(why: str) -> RegistryError:
    return RegistryError(400, "MANIFEST_INVALID", f"The manifest {why}.")


def too_large() -> RegistryError:
    return RegistryError(413, "SIZE_INVALID", f"A manifest has at most {MAX_MANIFEST_BYTES:,} bytes.")
