"""Pack a root file system as a container image: one layer, in the docker-archive that `podman load` reads."""

import hashlib
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import builder


def pack(name: str, root: Path, configuration: Mapping[str, Any], work: Path) -> Path:
    """Write `work/image.tar` of the files below `root`, with owners and extended attributes."""
    layer = work / "layer.tar"
    builder.run(["tar", "--numeric-owner", "--xattrs", "-cf", layer, "-C", root, "."])
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    description = {
        "architecture": "amd64",
        "os": "linux",
        "config": configuration,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    (work / "config.json").write_text(json.dumps(description))
    (work / "manifest.json").write_text(json.dumps(manifest))
    archive = work / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for file in ("manifest.json", "config.json", "layer.tar"):
            tar.add(work / file, file)
    return archive
