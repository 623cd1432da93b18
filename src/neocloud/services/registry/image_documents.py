"""Read manifests and configurations of images for the machine that runs them. They are hostile
JSON whose digests were compared. Pure."""

import json
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from neocloud.core import digests
from neocloud.core.json_values import as_list, as_object, is_list, is_object
from neocloud.engines.images import ImageSettings
from neocloud.services.registry.public import CannotPull, PullProblem

MOST_LAYERS = 127
MOST_VARIABLES = 1000
MOST_SETTINGS_BYTES = 128 * 1024
"""Bytes of entry point, command and variables together."""
MOST_TEXT = 4096
_OCI, _DOCKER = "application/vnd.oci.image", "application/vnd.docker.distribution.manifest"
IMAGES = (f"{_OCI}.manifest.v1+json", f"{_DOCKER}.v2+json")
INDEXES = (f"{_OCI}.index.v1+json", f"{_DOCKER}.list.v2+json")
_CONFIGS = (f"{_OCI}.config.v1+json", "application/vnd.docker.container.image.v1+json")
_LAYERS = (
    *(f"{_OCI}.layer.v1.tar{packed}" for packed in ("", "+gzip", "+zstd")),
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar",
)
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_.][A-Za-z0-9_.-]{0,63})?")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
Document = Mapping[str, Any]


def architecture() -> str:
    """Return the architecture of this machine, as images name it."""
    return _MACHINES.get(platform.machine(), platform.machine())


def read_document(content: bytes) -> Document:
    """Raises CannotPull."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not is_object(found):
        raise unusable("one of its documents is not JSON")
    return found


def manifest_for(index: Document) -> str:
    """Return the digest of the image that an index has for this machine. Raises CannotPull."""
    offered: list[str] = []
    for each in descriptors(index, "manifests"):
        wanted = mapping(each.get("platform")) or {}
        offered.append(f"{wanted.get('os', '?')}/{wanted.get('architecture', '?')}"[:40])
        is_image = each.get("mediaType") in IMAGES
        if is_image and (wanted.get("os"), wanted.get("architecture")) == ("linux", architecture()):
            return str(each["digest"])
    shown = ", ".join(dict.fromkeys(offered[:20])) or "nothing"
    raise unusable(f"it is an index without an image for linux/{architecture()}; it has {shown}")


def config_of(manifest: Document, size_bytes: int) -> tuple[str, int]:
    """Return digest and size of the configuration of an image whose layers may be pulled. Raises CannotPull.

    A layer that is elsewhere would be fetched from a URL that the manifest chooses, from this machine.
    """
    layers = descriptors(manifest, "layers")
    [described] = descriptors({"config": [manifest.get("config")]}, "config")
    if "manifests" in manifest:
        raise unusable("its manifest is an index, too")
    if described.get("mediaType") not in _CONFIGS:
        raise unusable(f"it is an artifact ({described.get('mediaType')!s:.80}), not an image")
    for layer in (described, *layers):
        if layer.get("urls"):
            raise unusable("it has layers at other addresses, which are not fetched; push all its layers")
    for layer in layers:
        if layer.get("mediaType") not in _LAYERS:
            raise unusable(f"it has layers of the type {layer.get('mediaType')!s:.80}")
    if len(layers) > MOST_LAYERS:
        raise unusable(f"it has {len(layers):,} layers, and may have {MOST_LAYERS}; squash some")
    total = sum(int(layer["size"]) for layer in layers)
    if total > size_bytes:
        raise CannotPull(
            PullProblem.TOO_LARGE,
            f"Its layers have {total:,} bytes, more than the {size_bytes:,} of the disk: choose a larger disk"
            " (spec.disk.size_bytes), or make the image smaller.",
        )
    return str(described["digest"]), int(described["size"])


def settings_of(configuration: Document) -> ImageSettings:
    """Return how an image wants to be run. Raises CannotPull, also for one of another kind of machine."""
    made_for = (configuration.get("os") or "linux", configuration.get("architecture") or architecture())
    if made_for != ("linux", architecture()):
        shown = "/".join(str(each)[:40] for each in made_for)
        raise unusable(f"it is for {shown}, and this machine is linux/{architecture()}; build it for that")
    config = mapping(configuration.get("config") or {})
    if config is None:
        raise unusable("its configuration cannot be read")
    found = ImageSettings(
        entrypoint=_words(config, "Entrypoint"),
        command=_words(config, "Cmd"),
        variables=_words(config, "Env"),
        user=_text(config, "User"),
        working_dir=_text(config, "WorkingDir"),
    )
    words = (*found.entrypoint, *found.command, *found.variables)
    if (
        len(found.variables) > MOST_VARIABLES
        or sum(len(each.encode()) for each in words) > MOST_SETTINGS_BYTES
    ):
        raise unusable("its entry point, command and variables are too large")
    if any(each.partition("=")[0] in ("", each) for each in found.variables):
        raise unusable("one of its variables has no name or no value")
    if found.user and not _USER.fullmatch(found.user):
        raise unusable("its user is not a name or number")
    if found.working_dir and not found.working_dir.startswith("/"):
        raise unusable("its working directory is not an absolute path")
    return found


def unusable(why: str) -> CannotPull:
    return CannotPull(PullProblem.UNUSABLE, f"The image cannot be run here: {why}.")


def descriptors(document: Document, field: str) -> Sequence[Document]:
    """Return the descriptors in a list, with digests and sizes that can be used. Raises CannotPull."""
    given = document.get(field)
    if not is_list(given):
        raise unusable(f"its manifest has no {field}")
    found: list[Document] = []
    for each in given:
        described = as_object(each)
        digest, size = described.get("digest"), described.get("size")
        if not digests.is_digest(digest):
            raise unusable("its manifest names a digest that is neither SHA-256 nor SHA-512")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise unusable("its manifest gives something no size")
        found.append(described)
    return found


def mapping(given: object) -> Document | None:
    return given if is_object(given) else None


def _is_text(given: object) -> TypeGuard[str]:
    """Return whether it can be given to a program."""
    try:
        return isinstance(given, str) and b"\0" not in given.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _words(config: Document, field: str) -> Sequence[str]:
    given = config.get(field)
    found = tuple(each for each in as_list(given) if _is_text(each))
    if given is not None and not (is_list(given) and len(found) == len(given)):
        raise unusable(f"{field} of its configuration is not a list of texts")
    return found


def _text(config: Document, field: str) -> str:
    given = config.get(field) or ""
    if not _is_text(given) or len(given) > MOST_TEXT:
        raise unusable(f"{field} of its configuration is not a text")
    return given
