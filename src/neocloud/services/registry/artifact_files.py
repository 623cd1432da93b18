"""The files of an artifact: layers with a name each, as ORAS and ModelPack have them. The manifest is hostile
JSON whose digest was compared. Pure.

A name is a title that anyone who may push has chosen. It becomes the name of a file here, so it has to be
one: no path, no dot in front. Files with other names are left out, as objects of buckets are.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from neocloud.services.registry.image_documents import Document, descriptors, mapping
from neocloud.services.registry.public import ArtifactFile, CannotPull, PullProblem

MOST_FILES = 1000
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
NAMES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
"""Annotations that name the file of a layer: ORAS's, and ModelPack's."""
_PACKED = "io.deis.oras.content.unpack"
_PACKED_TYPES = re.compile(r"application/vnd\.cncf\.model\..*\.tar(\+[a-z]+)?")
_HOW = "push the files themselves from within their folder"


def files_of(manifest: Document) -> Sequence[ArtifactFile]:
    """Raises CannotPull. Where all files are in one folder, they are as if they were in none."""
    if "manifests" in manifest:
        raise _unusable("it is an index; name one of its manifests by its digest")
    layers = descriptors(manifest, "layers")
    if len(layers) > MOST_FILES:
        raise _unusable(f"it has {len(layers):,} layers, and may have {MOST_FILES:,}")
    named = {title: each for each in layers if (title := _title(each))}
    if len(named) < sum(bool(_title(each)) for each in layers):
        raise _unusable("two of its files have the same name")
    for each in named.values():
        _check_whole(each)
    folders = {title.rpartition("/")[0] for title in named}
    cut = len(folders.pop()) + 1 if len(folders) == 1 and "" not in folders else 0
    found = [
        ArtifactFile(title[cut:], str(each["digest"]), int(each["size"]))
        for title, each in named.items()
        if FILE_NAME.fullmatch(title[cut:])
    ]
    if not found:
        raise _unusable(f"none of its layers has the name of a file ({NAMES[0]}); {_HOW}")
    return found


def _check_whole(layer: Document) -> None:
    """Raise CannotPull unless the layer is the file itself, and in the registry."""
    is_packed = _annotations(layer).get(_PACKED) == "true"
    if is_packed or _PACKED_TYPES.fullmatch(str(layer.get("mediaType"))):
        raise _unusable(f"it has packed folders; {_HOW} (`oras push`, `modctl build --raw`)")
    if layer.get("urls"):
        raise _unusable("it has files at other addresses, which are not fetched; push all its files")


def _annotations(layer: Document) -> Mapping[str, Any]:
    return mapping(layer.get("annotations")) or {}


def _title(layer: Document) -> str:
    given = (_annotations(layer).get(name) for name in NAMES)
    return next((each for each in given if isinstance(each, str) and each), "")


def _unusable(why: str) -> CannotPull:
    return CannotPull(PullProblem.UNUSABLE, f"The artifact cannot be used: {why}.")
