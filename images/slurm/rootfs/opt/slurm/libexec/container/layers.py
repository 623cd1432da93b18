"""Layers that are compressed with zstd, which umoci does not read: they become plain archives.

All of an image is written again as an OCI layout. A layer is known by its first bytes, since manifests have
several types for it: OCI's, Docker's, and zstd:chunked, which is zstd with frames that decompressors skip.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from files import read_small, show_life

ZSTD = "/opt/slurm/libexec/zstd"
MOST_METADATA = 16 << 20
TYPE = "application/vnd.oci.image"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
GZIP, ZSTD_FRAME, ZSTD_SKIPPED = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"


def oci_layout(copied: Path, target: Path) -> Iterator[tuple[list[str], Path]]:
    """Make an OCI layout of what skopeo has copied to a folder.

    Each command that is yielded decompresses a layer to the path beside it, and must run before the next.
    Raises ValueError, KeyError, TypeError or AttributeError if the image has no proper description.
    """
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifest = json.loads(read_small(copied / "manifest.json", MOST_METADATA))
    put: dict[str, dict[str, Any]] = {}  # an image may have a layer more than once
    for digest in [layer["digest"] for layer in manifest["layers"]]:
        path = copied / _file_name(digest)
        if digest in put:
            continue
        with path.open("rb") as file:
            start = file.read(4)
        if start == ZSTD_FRAME or start[1:] == ZSTD_SKIPPED:
            plain = target / "decompressed"
            yield [ZSTD, "--decompress", "--stdout", "--quiet", str(path)], plain
            put[digest] = _put(plain, blobs, "layer.v1.tar")
            path.unlink()
        else:
            put[digest] = _put(path, blobs, "layer.v1.tar+gzip" if start[:2] == GZIP else "layer.v1.tar")
    config = _put(copied / _file_name(manifest["config"]["digest"]), blobs, "config.v1+json")
    layers = [put[layer["digest"]] for layer in manifest["layers"]]
    described = {
        "schemaVersion": 2,
        "mediaType": f"{TYPE}.manifest.v1+json",
        "config": config,
        "layers": layers,
    }
    listed = target / "manifest"
    listed.write_text(json.dumps(described))
    name = {"annotations": {"org.opencontainers.image.ref.name": "image"}}
    index = {"schemaVersion": 2, "manifests": [_put(listed, blobs, "manifest.v1+json") | name]}
    (target / "index.json").write_text(json.dumps(index))
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _file_name(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise ValueError(digest)
    return digest.partition(":")[2]


def _put(path: Path, blobs: Path, kind: str) -> dict[str, Any]:
    """Move a file to the blobs of a layout. Return its description."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
            show_life()
    size = path.stat().st_size
    path.rename(blobs / digest.hexdigest())
    return {"mediaType": f"{TYPE}.{kind}", "digest": f"sha256:{digest.hexdigest()}", "size": size}
