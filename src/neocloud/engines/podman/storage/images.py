# pyright: strict
"""Container images: look up, import and load them. No registry is contacted.

Some images are root file systems: folders from which pods run without a copy. Image
`localhost/neocloud/<image>:<version>` is the folder `<home>/images/<image>/<version>/rootfs`, if that exists.
It is never written to: each container has a layer above it, which is removed with the container. The version
is part of the name, so a pod keeps the version that it started with while newer ones are built beside it.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from neocloud.engines.base import EngineError
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.libpod import Libpod
from neocloud.engines.podman.records import logged

logger = logging.getLogger(__name__)

_CHUNK = 1024 * 1024
_IMPORT_SECONDS = 600.0
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
"""Environment variables that a container image would define."""
_NAME = re.compile(r"localhost/neocloud/([a-z0-9][a-z0-9-]*):([A-Za-z0-9][A-Za-z0-9_-]*)")


def full_image_name(name: str) -> str:
    """Return Podman's name of an image: without a registry it is local, without a version `latest`."""
    first, _, _ = name.partition("/")
    local = "/" not in name or not ("." in first or ":" in first or first == "localhost")
    last = name.rsplit("/", 1)[-1]
    version = "" if ":" in last or "@" in last else ":latest"
    return f"{'localhost/' if local else ''}{name}{version}"


class Images:
    """Looks up and imports images that Podman stores."""

    def __init__(self, libpod: Libpod) -> None:
        self._libpod = libpod

    async def exists(self, name: str) -> bool:
        return await self._libpod.exists(f"/images/{full_image_name(name)}")

    async def import_root(
        self,
        source: Path,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        entrypoint: Sequence[str] = (),
    ) -> None:
        """Create an image from a folder or tar file with a root file system, replacing one of that name."""
        if not await asyncio.to_thread(source.exists):
            raise EngineError(f"{source} does not exist, so image {name} cannot be made from it.")
        changes = [f"ENV {key}={json.dumps(value)}" for key, value in (env or {}).items()]
        if entrypoint:
            changes.append(f"ENTRYPOINT {json.dumps(list(entrypoint))}")
        with logged(logger, f"Imported image {name} from {source}"):
            await self._libpod.request(
                "POST",
                "/images/import",
                params={"reference": full_image_name(name), "changes": changes},
                content=_tar(source),
                headers={"Content-Type": "application/x-tar"},
                timeout=_IMPORT_SECONDS,
            )

    async def load(self, archive: Path) -> None:
        """Load an image archive (`docker save` format) under the names it contains."""
        if not await asyncio.to_thread(archive.is_file):
            raise EngineError(f"{archive} is missing. Build it again with: neo image build --force")
        with logged(logger, f"Loaded image archive {archive}"):
            await self._libpod.request(
                "POST",
                "/images/load",
                content=_tar(archive),
                headers={"Content-Type": "application/x-tar"},
                timeout=_IMPORT_SECONDS,
            )


async def _tar(source: Path) -> AsyncIterator[bytes]:
    """Yield the bytes of the tar file, or of a tar stream of the folder."""
    is_folder = await asyncio.to_thread(source.is_dir)
    command = ["cat", str(source)]
    if is_folder:
        command = ["tar", "--numeric-owner", "--xattrs", "-C", str(source), "-c", "."]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, limit=_CHUNK)
    assert process.stdout is not None
    try:
        while chunk := await process.stdout.read(_CHUNK):
            yield chunk
        if await process.wait():
            raise EngineError(f"{source} could not be read; check that it is complete.")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def root_filesystem(layout: Layout, image: str) -> Path | None:
    """Return the folder of an image; None for images that Podman stores and for missing ones."""
    name = _NAME.fullmatch(full_image_name(image))
    if name is None:
        return None
    folder = layout.images / name[1] / name[2] / "rootfs"
    return folder.resolve() if folder.is_dir() else None
