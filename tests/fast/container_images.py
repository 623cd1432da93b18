"""Container images made on the spot."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BUSYBOX = Path("/bin/busybox")
LIBRARIES = ("libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1")
PROGRAMS = (
    "sh",
    "cat",
    "touch",
    "echo",
    "true",
    "sleep",
    "id",
    "ls",
    "head",
    "env",
    "pwd",
    "hostname",
    "stat",
    "mkdir",
    "rm",
    "grep",
    "sed",
    "mount",
    "wc",
    "chown",
    "dd",
)


def busybox_layer(files: Mapping[str, str] | None = None) -> bytes:
    """Return a layer with one static program under many names, and more files."""

    def fill(archive: tarfile.TarFile) -> None:
        for folder in ("bin", "etc", "opt", "tmp", "work"):
            add(archive, folder, kind=tarfile.DIRTYPE, mode=0o755)
        add(archive, "bin/busybox", BUSYBOX.read_bytes(), mode=0o755)
        for program in PROGRAMS:
            add(archive, f"bin/{program}", kind=tarfile.SYMTYPE, target="busybox")
        add(archive, "bin/bash", b'#!/bin/sh\nexec /bin/sh "$@"\n', mode=0o755)
        for name, text in {
            "etc/passwd": "root:x:0:0::/:/bin/sh\n",
            "etc/made-by": "test\n",
            **(files or {}),
        }.items():
            add(archive, name, text.encode())

    return layer(fill)


def python_layer(root: Path) -> bytes:
    """Return a layer with the Python of a Debian root file system: its program and what starting it takes."""
    (program,) = (root / "usr/bin").glob("python3.[0-9][0-9]")
    modules = root / "usr/lib" / program.name
    libraries = root / "usr/lib/x86_64-linux-gnu"

    def fill(archive: tarfile.TarFile) -> None:
        add(archive, f"usr/bin/{program.name}", program.read_bytes(), mode=0o755)
        add(archive, "bin/python3", kind=tarfile.SYMTYPE, target=f"../usr/bin/{program.name}")
        loader = (libraries / "ld-linux-x86-64.so.2").read_bytes()
        add(archive, "lib64/ld-linux-x86-64.so.2", loader, mode=0o755)
        for library in LIBRARIES:
            add(archive, f"usr/lib/x86_64-linux-gnu/{library}", (libraries / library).read_bytes())
        add(archive, f"usr/lib/{program.name}/lib-dynload", kind=tarfile.DIRTYPE, mode=0o755)
        for pattern in ("*.py", "encodings/*.py", "collections/*.py", "importlib/*.py"):
            for module in sorted(modules.glob(pattern)):
                add(archive, str(module.relative_to(root)), module.read_bytes())

    return layer(fill)


def sparse_layer(size: int) -> bytes:
    """Return a small layer with one file of this size, which is all hole in the archive."""
    entry = tarfile.TarInfo("GNUSparseFile.0/large")
    entry.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "large",
        "GNU.sparse.realsize": str(size),
    }
    map_of_data = f"1\n{size}\n0\n".encode().ljust(tarfile.BLOCKSIZE, b"\0")
    entry.size = len(map_of_data)
    return layer(lambda archive: archive.addfile(entry, io.BytesIO(map_of_data)))


def layer(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            fill(archive)
        return buffer.getvalue()


def add(
    archive: tarfile.TarFile,
    name: str,
    content: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    target: str = "",
    mode: int = 0o644,
) -> None:
    """Add an entry of any kind, with any name."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode, entry.size = kind, target, mode, len(content)
    if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        entry.devmajor, entry.devminor = 1, 5
    archive.addfile(entry, io.BytesIO(content))


OCI = ("application/vnd.oci.image.{}", "layer.v1.tar", "config.v1+json", "manifest.v1+json")
DOCKER = (
    "application/vnd.docker.{}",
    "image.rootfs.diff.tar",
    "container.image.v1+json",
    "distribution.manifest.v2+json",
)
"""Types: the pattern of all, and what a layer, the configuration and the manifest are called in it."""

BLOCK = 1 << 17


def zstd(content: bytes) -> bytes:
    """Return a frame of zstd that holds the content as it is, block by block (RFC 8878)."""
    blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)] or [b""]
    frame = b"\x28\xb5\x2f\xfd\xa0" + len(content).to_bytes(4, "little")
    for number, block in enumerate(blocks, 1):
        frame += (len(block) << 3 | (number == len(blocks))).to_bytes(3, "little") + block
    return frame


def zstd_chunked(content: bytes) -> bytes:
    """Return what a tool for lazy pulling writes: several frames, and frames with its notes to be skipped."""
    note = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    half = len(content) // 2
    return note + zstd(content[:half]) + zstd(content[half:]) + note


def write_layout(
    folder: Path,
    layers: Sequence[bytes],
    settings: Mapping[str, Any] | None = None,
    *,
    architecture: str = "amd64",
    claimed_size: int = 0,
    packed: Mapping[int, Callable[[bytes], bytes]] | None = None,
    types: tuple[str, str, str, str] = OCI,
) -> Path:
    """Write an image as an OCI layout.

    Its last layer may claim a size that it does not have; layers may be packed, and all be of Docker's types.
    """
    pattern, of_layer, of_configuration, of_manifest = types
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": pattern.format(kind), "digest": f"sha256:{digest}", "size": len(content)}

    def put_layer(number: int, content: bytes) -> dict[str, Any]:
        pack = (packed or {}).get(number)
        if pack is None:
            return put(of_layer, content)
        suffix = "gzip" if pack is gzip.compress else "zstd"
        return put(f"{of_layer}{'+' if types is OCI else '.'}{suffix}", pack(content))

    described = [put_layer(number, content) for number, content in enumerate(layers)]
    configuration = {
        "architecture": architecture,
        "os": "linux",
        "config": dict(settings or {}),
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in layers],
        },
    }
    config = put(of_configuration, json.dumps(configuration).encode())
    if claimed_size:
        described[-1]["size"] = claimed_size
    manifest = {"schemaVersion": 2, "config": config, "layers": described}
    manifest["mediaType"] = pattern.format(of_manifest)
    listed = put(of_manifest, json.dumps(manifest).encode())
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def write_docker_archive(path: Path, content: bytes) -> Path:
    """Write an image of one layer as `docker save` does."""
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["tiny:1"], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        add(archive, "config.json", json.dumps(configuration).encode())
        add(archive, "layer.tar", content)
        add(archive, "manifest.json", json.dumps(manifest).encode())
    return path
