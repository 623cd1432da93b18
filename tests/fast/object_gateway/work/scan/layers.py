"""Layers of images, honest and hostile."""

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping

BOOKWORM = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_CODENAME=bookworm\nID=debian\n'
STATUS = "var/lib/dpkg/status"
RELEASE = "usr/lib/os-release"


def package(name: str, version: str, source: str = "", status: str = "install ok installed") -> str:
    origin = f"Source: {source}\n" if source else ""
    text = (
        f"Package: {name}\nStatus: {status}\n{origin}Version: {version}\nDescription: a package\n with\n .\n"
    )
    return f"{text}\n"


def debian(*packages: str, **more: str) -> dict[str, bytes]:
    files = {RELEASE: BOOKWORM, STATUS: "".join(packages), **more}
    return {path: text.encode() for path, text in files.items()}


def layer(
    files: Mapping[str, bytes], *, packed: bool = True, links: Mapping[str, str] | None = None
) -> bytes:
    """Return a tar archive of these files; links by path, to where they lead."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for path, to in (links or {}).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, to
            archive.addfile(member)
    return gzip.compress(target.getvalue(), 1, mtime=0) if packed else target.getvalue()


def framed(layers: Iterable[bytes]) -> bytes:
    """Return what the process that reads an image gets."""
    return b"".join(len(each).to_bytes(8, "big") + each for each in layers)
