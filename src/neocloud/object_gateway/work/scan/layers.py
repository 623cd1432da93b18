"""Read which Debian packages an image has: hostile tar archives, in a process of its own with limits.

`python -m neocloud.object_gateway.work.scan.layers` reads layers from standard input, the lowest first,
each as its length in eight bytes and its content, and prints an `Inventory` as JSON. It opens no file
and writes none; where it may, it gives up its rights first. Beside the standard library it imports
Arrow, which reads zstd, and `inventory`.
"""

import gzip
import io
import json
import os
import re
import resource
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, Any

from neocloud.core.byte_streams import Readable
from neocloud.object_gateway.work.scan.inventory import LENGTH_BYTES, Inventory

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve more addresses than LIMITS has

import pyarrow  # pyright: ignore[reportMissingTypeStubs]

MAX_LAYERS = 512
MAX_UNPACKED_BYTES = 64 * 1024**3
"""The limit of all layers together."""
MAX_ENTRIES = 2_000_000
MAX_PATH = 4096
MAX_PACKAGES = 20_000
MAX_FILES = 4096
"""How many files are kept at a time; images without dpkg have one for each package."""
MAX_KEPT_BYTES = 32 * 1024**2
LIMITS = {
    resource.RLIMIT_AS: 512 * 1024**2,
    resource.RLIMIT_CPU: 120,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 16,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_CORE: 0,
}
"""Resource limits of the process."""
_NOBODY = 65534
_STATUS, _STATUS_FOLDER = "var/lib/dpkg/status", "var/lib/dpkg/status.d/"
_RELEASES = ("usr/lib/os-release", "etc/os-release")
_WANTED = (_STATUS, *_RELEASES)
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED = b"\x2a\x4d\x18"
"""The rest of the magic number of a frame without data, after a byte from 0x50 to 0x5f."""
_arrow: Any = pyarrow  # it has no types
_GZIP = b"\x1f\x8b"
_SOURCE = re.compile(r"([a-z0-9][a-z0-9+.-]{0,127})(?: \(([0-9A-Za-z.+:~-]{1,128})\))?")
_NAME, _VERSION = re.compile(r"[a-z0-9][a-z0-9+.-]{0,127}"), re.compile(r"[0-9A-Za-z.+:~-]{1,128}")
_CODENAME = re.compile(r"[a-z]{1,32}")


class Unreadable(Exception):
    """The layers cannot be read, or are more than is read."""


class _Layer:
    """The bytes of one layer; nothing beyond them."""

    def __init__(self, source: IO[bytes], length: int) -> None:
        self._source = source
        self.left = length

    def read(self, size: int = -1) -> bytes:
        size = self.left if size < 0 else min(size, self.left)
        found = self._source.read(size)
        if len(found) < size:
            raise Unreadable("a layer ends early")
        self.left -= len(found)
        return found


class _Start(io.RawIOBase):
    """A layer whose first bytes were looked at."""

    def __init__(self, first: bytes, rest: _Layer) -> None:
        super().__init__()
        self._first = first
        self._rest = rest

    def readable(self) -> bool:  # Arrow asks
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._first:
            return self._rest.read(size)
        taken = self._first if size < 0 else self._first[:size]
        self._first = self._first[len(taken) :]
        return taken


def _decompressed(first: bytes, source: _Start) -> Readable:
    """`first` is how the layer begins. A window of zstd has at most 128 MiB, as its library has it."""
    if first.startswith(_GZIP):
        return gzip.GzipFile(fileobj=source)
    if first == _ZSTD or first[1:] == _ZSTD_SKIPPED:
        return _arrow.CompressedInputStream(_arrow.PythonFile(source, mode="r"), "zstd")
    return source


class _Archive(tarfile.TarFile):
    members: list[tarfile.TarInfo]


class _Bounded(io.RawIOBase):
    """A reader of decompressed bytes, up to the limit for one image."""

    def __init__(self, source: Readable, image: "_Image") -> None:
        super().__init__()
        self._source = source
        self._image = image

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = self._source.read(size)
        self._image.unpacked += len(found)
        if self._image.unpacked > MAX_UNPACKED_BYTES:
            raise Unreadable(f"the layers have more than {MAX_UNPACKED_BYTES:,} bytes")
        return found


class _Image:
    """The files of interest, after the layers that were read so far."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.unpacked = self.entries = 0

    def apply(self, layer: _Layer) -> None:
        """Raises Unreadable."""
        first = layer.read(min(4, layer.left))
        unpacked = _Bounded(_decompressed(first, _Start(first, layer)), self)
        added: dict[str, bytes] = {}
        removed: set[str] = set()
        try:
            with _Archive.open(fileobj=unpacked, mode="r|") as archive:
                while (member := archive.next()) is not None:
                    archive.members = []  # it would keep all of them
                    self._look(archive, member, added, removed)
        except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
            if not isinstance(error, tarfile.ReadError) or first:
                raise Unreadable("a layer is not a tar archive, or is damaged") from error
        while layer.left:
            layer.read(min(layer.left, 1024**2))
        self.files = {path: each for path, each in self.files.items() if not _is_below(path, removed)}
        self.files.update(added)
        if len(self.files) > MAX_FILES or sum(map(len, self.files.values())) > MAX_KEPT_BYTES:
            raise Unreadable("the lists of packages are too large")

    def _look(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, added: dict[str, bytes], removed: set[str]
    ) -> None:
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise Unreadable(f"the layers have more than {MAX_ENTRIES:,} files")
        if member.size < 0:
            raise Unreadable("a layer is not a tar archive, or is damaged")
        if len(member.name) > MAX_PATH:
            raise Unreadable(f"a path has more than {MAX_PATH:,} characters")
        path = member.name.removeprefix("./").strip("/")
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            removed.add(folder)
        elif name.startswith(_WHITEOUT):
            removed.add(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
        elif path in _WANTED or path.startswith(_STATUS_FOLDER):
            self._keep(archive, member, path, added, removed)
        elif not member.isdir() and any(each.startswith(f"{path}/") for each in (*_WANTED, _STATUS_FOLDER)):
            removed.add(path)  # a file or link in the place of a folder

    def _keep(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        path: str,
        added: dict[str, bytes],
        removed: set[str],
    ) -> None:
        if member.isdir() or path.endswith(".md5sums"):
            return
        removed.add(path)
        added.pop(path, None)
        if not member.isreg() or member.issparse():
            return  # links are never followed
        kept = sum(map(len, added.values()))
        if member.size > MAX_KEPT_BYTES - kept or len(added) >= MAX_FILES:
            raise Unreadable("the lists of packages are too large")
        content = archive.extractfile(member)
        added[path] = content.read(member.size) if content is not None else b""


def _is_below(path: str, removed: set[str]) -> bool:
    parts = path.split("/")
    return "" in removed or any("/".join(parts[:number]) in removed for number in range(1, len(parts) + 1))


def read_layers(source: IO[bytes]) -> Inventory:
    """Raises Unreadable."""
    image = _Image()
    for _ in range(MAX_LAYERS):
        length = source.read(LENGTH_BYTES)
        if not length:
            return _inventory(image.files)
        if len(length) < LENGTH_BYTES:
            raise Unreadable("a layer ends early")
        image.apply(_Layer(source, int.from_bytes(length, "big")))
    raise Unreadable(f"the image has more than {MAX_LAYERS} layers")


def _inventory(files: dict[str, bytes]) -> Inventory:
    release = next((_release(files[path]) for path in _RELEASES if path in files), "")
    found: set[tuple[str, str]] = set()
    number = 0
    lists = [each for path, each in files.items() if path == _STATUS or path.startswith(_STATUS_FOLDER)]
    for source in (source for each in lists for source in _installed(each)):
        number += 1
        found.add(source)
        if number > MAX_PACKAGES:
            raise Unreadable(f"the image has more than {MAX_PACKAGES:,} packages")
    return Inventory(release, number, sorted(found))


def _release(content: bytes) -> str:
    """Return the code name that an os-release file says; "" of another distribution."""
    text = content.decode(errors="replace")
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {name: value.strip().strip("\"'") for name, value in fields.items()}
    codename = values.get("VERSION_CODENAME", "")
    return codename if values.get("ID") == "debian" and _CODENAME.fullmatch(codename) else ""


def _installed(status: bytes) -> Iterator[tuple[str, str]]:
    """Yield source package and version of each installed package. Raises Unreadable."""
    for paragraph in re.split(r"\n[ \t]*\n", status.decode(errors="replace")):
        lines = [line.partition(":") for line in paragraph.split("\n") if line[:1] not in (" ", "\t", "")]
        fields = {name.strip().lower(): value.strip() for name, _, value in lines}
        if "package" not in fields or fields.get("status", "install ok installed")[-10:] != " installed":
            continue
        version = fields.get("version", "")
        source = _SOURCE.fullmatch(fields.get("source") or fields["package"])
        if source is None or not _VERSION.fullmatch(version) or not _NAME.fullmatch(fields["package"]):
            raise Unreadable("the list of packages is damaged")
        yield source[1], source[2] or version


def _give_up_rights() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    for limited, most in LIMITS.items():
        resource.setrlimit(limited, (most, most))


def main() -> None:
    os.nice(10)  # requests go first
    _give_up_rights()
    try:
        found: dict[str, object] = asdict(read_layers(sys.stdin.buffer))
    except Unreadable as error:
        found = {"problem": str(error)}
    except MemoryError:
        found = {"problem": "its layers need more memory than may be used to read them"}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
