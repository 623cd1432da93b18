"""Images that are pulled from registries. They are hostile: their layers hold whatever a tenant made.

Podman pulls each into a store of its own, which lies in a file system of the size that the pull may take
(`sized_filesystems`): a layer that unpacks to more gets ENOSPC, and the number of its files has a limit too.
Podman unpacks layers with their folder as the root, so no name leads out of it. The image is then mounted
read-only, and is a root file system like those of the cloud: containers get a disk of their size above it.

The credential is in memory: the file that Podman reads it from has no name. A pull that fails, is cancelled
or was interrupted by a kill leaves a folder without a record, which is removed before the next one.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neocloud.core.cleanup import aundo_on_error
from neocloud.core.osfiles import make_folder
from neocloud.engines.base import EngineError, EngineUnavailable
from neocloud.engines.images import PULLED, ImagePull, ImageSettings, ImageTooLarge
from neocloud.engines.podman.layout import Layout, read_record, write_file, write_record
from neocloud.engines.podman.storage import sized_filesystems
from neocloud.engines.podman.storage.mounts import is_mounted, libc, mounts_below, remove_tree, unmount
from neocloud.engines.podman.storage.sized_filesystems import IMAGE

MOUNT_SECONDS = 60.0
_NAME = re.compile(rf"{re.escape(PULLED)}[a-z0-9][a-z0-9-]*:[0-9a-f]{{64}}")
_SHOWN_CHARS = 500
_ENGINE_CONF = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = {run}
image_copy_tmp_dir = {scratch}
volume_path = {volumes}

[network]
network_backend = "netavark"
network_config_dir = {networks}
"""
_POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
"""The caller has compared digests; there are no signatures to check."""


@dataclass(frozen=True)
class _ImageLocation:
    """The location of an image."""

    folder: Path
    point: Path
    run: Path
    """Files of Podman that do not outlive a boot."""

    @property
    def record(self) -> Path:
        return self.folder / "image.json"

    @property
    def disk(self) -> Path:
        return self.folder / IMAGE


class PulledImages:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._pulling: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._active: set[Path] = set()
        """The folders of pulls that run; only the server pulls."""
        self._mounting = threading.Lock()

    def names(self) -> frozenset[str]:
        records = (read_record(path) for path in self._layout.pulled.glob("*/image.json"))
        return frozenset(record["image"] for record in records if record)

    def has(self, image: str) -> bool:
        return self._record(image) is not None

    def settings(self, images: set[str]) -> dict[str, ImageSettings]:
        """Return how those of these images that were pulled want to be run, by name."""
        records = {image: self._record(image) for image in images}
        return {image: ImageSettings(**record["settings"]) for image, record in records.items() if record}

    def root(self, image: str) -> Path | None:
        """Return the folder with the root file system of an image, mounted; None unless it was pulled.
        Blocking. Raises EngineError."""
        record = self._record(image)
        if record is None:
            return None
        place, root = self._place(image), Path(record["root"])
        with self._mounting:
            if not is_mounted(root):
                sized_filesystems.mount(place.disk, place.point)
                self._mount(place, record["id"])
        return root

    async def pull(self, pull: ImagePull) -> None:
        """Raises EngineError: ImageTooLarge where its layers do not fit."""
        if not _NAME.fullmatch(pull.image):
            raise EngineError(f"{pull.image!r} is not a name of a pulled image.")
        async with self._pulling[pull.image]:
            if await asyncio.to_thread(self.has, pull.image):
                return
            place = self._place(pull.image)
            self._active.add(place.folder)
            try:
                async with aundo_on_error(lambda: asyncio.to_thread(_discard, place, lazily=True)):
                    await asyncio.to_thread(self._remove_interrupted)
                    await asyncio.to_thread(self._prepare, place, pull.size_bytes)
                    image_id = await self._run(place, pull)
                    await asyncio.to_thread(self._finish, place, pull, image_id)
            finally:
                self._active.discard(place.folder)

    async def remove(self, image: str) -> None:
        """Remove an image that no container uses. Raises EngineError where one does after all."""
        async with self._pulling[image]:
            await asyncio.to_thread(_discard, self._place(image), lazily=False)
        await asyncio.to_thread(self._remove_interrupted)

    def _record(self, image: str) -> dict[str, Any] | None:
        return read_record(self._place(image).record) if image.startswith(PULLED) else None

    def _remove_interrupted(self) -> None:
        """Remove what pulls of a server that was killed have left."""
        for folder in self._layout.pulled.glob("*"):
            place = self._place_of(folder.name)
            if place.folder not in self._active and not place.record.exists():
                _discard(place, lazily=True)

    def _place(self, image: str) -> _ImageLocation:
        return self._place_of(hashlib.sha256(image.encode()).hexdigest()[:12])

    def _place_of(self, key: str) -> _ImageLocation:
        layout = self._layout
        return _ImageLocation(layout.pulled / key, layout.pulled_mounts / key, layout.run / "pull" / key)

    def _prepare(self, place: _ImageLocation, size_bytes: int) -> None:
        _discard(place, lazily=True)
        for folder in (self._layout.pulled, self._layout.pulled_mounts, place.run.parent):
            make_folder(folder, 0o700)
        sized_filesystems.create(place.disk, size_bytes)
        sized_filesystems.mount(place.disk, place.point)
        (place.point / "scratch").mkdir(mode=0o700)
        for name, content in _configuration(place).items():
            write_file(place.folder / name, content.encode(), 0o600)

    async def _run(self, place: _ImageLocation, pull: ImagePull) -> str:
        """Return the id of the image that Podman has pulled."""
        credential = base64.b64encode(f"{pull.username}:{pull.password}".encode()).decode()
        host = pull.source.partition("/")[0]
        with _nameless(json.dumps({"auths": {host: {"auth": credential}}})) as credentials:
            command = [
                # Ends with this process: what it leaves is removed by the next pull.
                *("setpriv", "--pdeathsig", "KILL", "podman", "pull", "--quiet", "--tls-verify=false"),
                *("--signature-policy", str(place.folder / "policy.json")),
                *("--authfile", f"/proc/self/fd/{credentials}", f"docker://{pull.source}"),
            ]
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=_environment(place),
                    pass_fds=(credentials,),
                )
            except OSError as error:
                raise EngineError(f"Podman could not be started to pull the image: {error}.") from error
            try:
                async with asyncio.timeout(pull.timeout_seconds):
                    said, why = await process.communicate()
            except TimeoutError as error:
                raise EngineUnavailable(
                    f"The image was not pulled within {pull.timeout_seconds / 60:g} minutes."
                ) from error
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode:
            raise await asyncio.to_thread(_failure, place, why)
        return said.decode().strip().rpartition("\n")[2]

    def _finish(self, place: _ImageLocation, pull: ImagePull, image_id: str) -> None:
        remove_tree(place.point / "scratch")
        root = self._mount(place, image_id)
        _write_out(place.point)
        record = {"image": pull.image, "id": image_id, "root": str(root), "settings": asdict(pull.settings)}
        write_record(place.record, record)

    def _mount(self, place: _ImageLocation, image_id: str) -> Path:
        """Mount an image of the store, and return where."""
        remove_tree(place.run)  # what Podman remembers of mounts before a shutdown
        said = _ran(["podman", "image", "mount", image_id], _environment(place))
        root = Path(said.strip())
        if not root.is_relative_to(place.point) or not is_mounted(root):
            raise EngineError(f"Podman has mounted the image {image_id} at {said!r:.200}.")
        return root


def _configuration(place: _ImageLocation) -> Mapping[str, str]:
    """Return the content of Podman's files for the store of one image, by name."""
    at = place.point
    settings = _ENGINE_CONF.format(
        run=json.dumps(str(place.run / "libpod")),
        scratch=json.dumps(str(at / "scratch")),
        volumes=json.dumps(str(at / "volumes")),
        networks=json.dumps(str(at / "networks")),
    )
    store = (
        f'[storage]\ndriver = "overlay"\ngraphroot = {json.dumps(str(at / "store"))}\n'
        f"runroot = {json.dumps(str(place.run / 'storage'))}\n"
        '\n[storage.options.overlay]\nskip_mount_home = "true"\n'
    )
    registries = "unqualified-search-registries = []\n"
    return {
        "containers.conf": settings,
        "storage.conf": store,
        "registries.conf": registries,
        "policy.json": _POLICY,
    }


def _environment(place: _ImageLocation) -> Mapping[str, str]:
    """Return all that Podman gets: no proxy and no setting of the operator."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(place.folder),
        "TMPDIR": str(place.point / "scratch"),
        "CONTAINERS_CONF": str(place.folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(place.folder / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(place.folder / "registries.conf"),
        "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
    }


@contextlib.contextmanager
def _nameless(content: str) -> Generator[int, None, None]:
    """Provide a descriptor of a file in memory."""
    descriptor = os.memfd_create("credentials")
    try:
        os.write(descriptor, content.encode())
        yield descriptor
    finally:
        os.close(descriptor)


def _failure(place: _ImageLocation, why: bytes) -> EngineError:
    if b"no space left on device" in why:  # of a full disk of the host, the file system says EIO
        size = place.disk.stat().st_size
        return ImageTooLarge(f"The image, packed and unpacked, does not fit in {size / 2**30:g} GiB.")
    lines = why.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    return EngineError(f"Podman did not pull the image: {lines[-1][:_SHOWN_CHARS]}")


def _discard(place: _ImageLocation, *, lazily: bool) -> None:
    """Remove what there is of an image, its record first. Raises EngineError while it is in use."""
    if not lazily:
        for point in mounts_below(place.point):
            unmount(point)
    place.record.unlink(missing_ok=True)
    for point in mounts_below(place.point):
        unmount(point, lazily=True)
    for folder in (place.run, place.folder):
        remove_tree(folder)
    with contextlib.suppress(FileNotFoundError):
        place.point.rmdir()


def _write_out(folder: Path) -> None:
    """Let the disk have all of a file system."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc.syncfs(descriptor)
    finally:
        os.close(descriptor)


def _ran(command: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=MOUNT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise EngineUnavailable(f"Podman took too long: {' '.join(command[1:3])}.") from error
    if done.returncode:
        raise EngineError(f"Podman could not mount the image: {done.stderr.strip()[-_SHOWN_CHARS:]}")
    return done.stdout
