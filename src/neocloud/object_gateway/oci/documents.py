# pyright: strict
"""Manifests and indexes as clients write them: hostile JSON of at most 4 MiB."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from neocloud.core import digests
from neocloud.core.json_values import as_object, is_list, is_object
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
_ELSEWHERE = ("nondistributable", "foreign")
"""Words in the media types of layers that a registry need not have."""
Document: TypeAlias = Mapping[str, Any]


def read_manifest(body: bytes, content_type: str, algorithm: str = digests.DEFAULT) -> NewManifest:
    """`algorithm` is that of its digest. Raises RegistryError."""
    if len(body) > MAX_MANIFEST_BYTES:
        raise too_large()
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _invalid("is not JSON") from None
    if not is_object(found):
        raise _invalid("is not an object")
    media_type = _media_type(found, content_type)
    is_index = media_type in INDEXES
    described = list(_descriptors(found, "manifests" if is_index else "layers"))
    named = [each for each in described if is_index and each["mediaType"] in ACCEPTED]
    blobs = [
        each
        for each in described
        if not (is_index and each["mediaType"] in ACCEPTED) and not _is_elsewhere(each)
    ]
    config = None if is_index else _descriptor(found.get("config"), "config")
    if config is not None:
        blobs.append(config)
    subject = found.get("subject")
    return NewManifest(
        digest=digests.digest_of(body, algorithm),
        media_type=media_type,
        size=len(body),
        artifact_type=_text(found, "artifactType") or (_text(config, "mediaType") if config else ""),
        subject=None if subject is None else str(_descriptor(subject, "subject")["digest"]),
        annotations=_annotations(found),
        blobs=tuple(str(each["digest"]) for each in blobs),
        manifests=tuple(str(each["digest"]) for each in named),
        sizes=_sizes([*blobs, *named]),
        image_bytes=min(_MAX_SIZE, len(body) + sum(int(each["size"]) for each in blobs)),
    )


def _media_type(document: Document, content_type: str) -> str:
    header = content_type.partition(";")[0].strip()
    inside = document.get("mediaType")
    media_type = header or inside
    if media_type not in ACCEPTED:
        raise _invalid(f"must have a Content-Type of {', '.join(ACCEPTED)}")
    if inside is not None and inside != media_type:
        raise _invalid("has another mediaType than the Content-Type of the request")
    if document.get("schemaVersion") != 2:
        raise _invalid("must have schemaVersion 2")
    return str(media_type)


def _sizes(described: Sequence[Document]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for each in described:
        if found.setdefault(each["digest"], each["size"]) != each["size"]:
            raise _invalid(f"gives {each['digest']} two sizes")
    return found


def _descriptors(document: Document, field: str) -> Iterator[Document]:
    named = document.get(field, [])
    if not is_list(named):
        raise _invalid(f"has {field} that is no list")
    if len(named) > MAX_NAMED:
        raise _invalid(f"has more than {MAX_NAMED:,} {field}")
    for number, each in enumerate(named):
        yield _descriptor(each, f"{field}[{number}]")


def _descriptor(value: object, field: str) -> Document:
    found: Document = as_object(value)
    size = found.get("size")
    is_sized = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _MAX_SIZE
    if not (digests.is_digest(found.get("digest")) and is_sized and isinstance(found.get("mediaType"), str)):
        raise _invalid(f"has no descriptor in {field}: mediaType, a digest of sha256 or sha512, and size")
    return found


def _annotations(document: Document) -> dict[str, str]:
    given = document.get("annotations")
    found = {key: each for key, each in as_object(given).items() if isinstance(each, str)}
    if given is not None and not (is_object(given) and len(found) == len(given)):
        raise _invalid("has annotations that are no texts")
    return found


def _text(document: Document, field: str) -> str:
    found = document.get(field, "")
    if not isinstance(found, str) or len(found) > 255:
        raise _invalid(f"has a {field} that is no text of up to 255 characters")
    return found


def _is_elsewhere(descriptor: Document) -> bool:
    media_type = str(descriptor["mediaType"])
    return bool(descriptor.get("urls")) and any(each in media_type for each in _ELSEWHERE)


def _invalid(why: str) -> RegistryError:
    return RegistryError(400, "MANIFEST_INVALID", f"The manifest {why}.")


def too_large() -> RegistryError:
    return RegistryError(413, "SIZE_INVALID", f"A manifest has at most {MAX_MANIFEST_BYTES:,} bytes.")
