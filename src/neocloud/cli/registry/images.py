"""The cloud's own images as OCI images: archives of `podman load`, and root file systems in folders.

A layer is packed into a file without a name, since its digest says whether the registry has it already. The
same image makes the same layers each time.
"""

import hashlib
import json
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from neocloud.cli.registry.client import Blob, RegistryClient, described
from neocloud.client.errors import ClientError

OCI = "application/vnd.oci.image"
CONFIG_TYPE, LAYER_TYPE = f"{OCI}.config.v1+json", f"{OCI}.layer.v1.tar+gzip"
CHUNK_BYTES = 1024**2
LEVEL = 3
"""Level of gzip: a third of the time of the usual 6, for some percent more bytes."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TAR = (
    *("tar", "--create", "--sort=name", "--numeric-owner", "--one-file-system", "--format=posix"),
    "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
    *("--xattrs", "--xattrs-include=security.capability"),
)
Image = Mapping[str, Any]


def push_image(
    registry: RegistryClient, folder: Path, image: Image, name: str, show: Callable[[str], None]
) -> str:
    """Push an image that was built into a folder, as its image.json says; return its digest. Raises
    ClientError."""
    if "archive" in image:
        config, layers = _of_archive(folder / image["archive"])
    else:
        config, layers = _of_root(folder / image["rootfs"])
    pushed: list[Mapping[str, Any]] = []
    packed: list[str] = []
    for open_layer in layers:
        show(f"layer {len(pushed) + 1} of {len(layers)}: packing")
        with open_layer() as source, tempfile.TemporaryFile(dir=folder) as spool:
            blob, content_digest = _pack(source, spool)
            packed.append(content_digest)
            if not registry.has_blob(blob.digest):
                show(f"layer {len(pushed) + 1} of {len(layers)}: sending")
                spool.seek(0)
                registry.push_blob(_chunks(spool))
        pushed.append(described(blob, LAYER_TYPE))
    if config["rootfs"]["diff_ids"] not in ([], packed):
        raise _damaged(name)
    config["rootfs"]["diff_ids"] = packed
    annotations = {
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.version": str(image["version"]),
    }
    settings = described(registry.push_bytes(json.dumps(config).encode()), CONFIG_TYPE)
    return registry.push_manifest(settings, pushed, annotations=annotations)


def _of_archive(file: Path) -> tuple[dict[str, Any], list[Callable[[], Any]]]:
    with tarfile.open(file) as archive:
        (manifest,) = json.load(_member(archive, "manifest.json"))
        config: dict[str, Any] = json.load(_member(archive, manifest["Config"]))
    return config, [lambda each=each: _in_archive(file, each) for each in manifest["Layers"]]


@contextmanager
def _in_archive(file: Path, name: str) -> Generator[IO[bytes], None, None]:
    with tarfile.open(file) as archive:
        yield _member(archive, name)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    if found is None:
        raise _damaged(name)
    return found


def _of_root(root: Path) -> tuple[dict[str, Any], list[Callable[[], Any]]]:
    config: dict[str, Any] = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [f"PATH={_PATH}"], "Cmd": ["/bin/bash"]},
        "rootfs": {"type": "layers", "diff_ids": []},
    }
    return config, [lambda: _packed(root)]


@contextmanager
def _packed(root: Path) -> Generator[IO[bytes], None, None]:
    """Yield a tar of the folder. GNU tar knows owners, links, devices and capabilities of files."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([*_TAR, f"--directory={root}", "."], stdout=subprocess.PIPE, stderr=said)
        with process:
            assert process.stdout is not None
            try:
                yield process.stdout
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            said.seek(0)
            why = said.read(4096).decode(errors="replace").strip().splitlines()[-1:]
            raise ClientError(
                "FAILED_PRECONDITION",
                f"{root} cannot be packed: {why[0] if why else 'tar failed'}",
                "Run this as the operator, who may read the image",
            )


def _pack(source: IO[bytes], spool: BinaryIO) -> tuple[Blob, str]:
    """Compress into the file; return the blob, and the digest of what is in it."""
    content, packed, size = hashlib.sha256(), hashlib.sha256(), 0
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # gzip, without a time

    def write(piece: bytes) -> int:
        packed.update(piece)
        return spool.write(piece)

    while chunk := source.read(CHUNK_BYTES):
        content.update(chunk)
        size += write(compressor.compress(chunk))
    size += write(compressor.flush())
    return Blob(f"sha256:{packed.hexdigest()}", size), f"sha256:{content.hexdigest()}"


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _damaged(name: str) -> ClientError:
    return ClientError(
        "FAILED_PRECONDITION",
        f"The image {name} is damaged on the disk",
        f"Build it again: `neo image build {name} --force`",
    )
