"""HTTP client of Podman's libpod REST API on its unix socket, and the images that it stores.

Turns every failure into an EngineError whose message can be shown to a user. A service that does not answer
is started again once. The client knows nothing about pods. Images are looked up, imported and loaded; no
registry is contacted.

Some images are root file systems: folders from which pods run without a copy. Image
`localhost/neocloud/<image>:<version>` is the folder `<home>/images/<image>/<version>/rootfs`, if that exists.
It is never written to: each container has a layer above it, which is removed with the container. The version
is part of the name, so a pod keeps the version that it started with while newer ones are built beside it.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from neocloud.engines.base import EngineError, EngineUnavailable
from neocloud.engines.podman.layout import Layout, logged

logger = logging.getLogger(__name__)


API = "/v4.0.0/libpod"
_HINTS = (
    ("address already in use", "Free that port on this machine or choose another."),
    ("no space left on device", "The disk is full: free space and try again."),
    ("image not known", "Build or import the image first."),
    ("no such image", "Build or import the image first."),
    ("subnet", "Choose another address pool."),
    ("unresolvable CDI devices", "Create the device list with: nvidia-ctk cdi generate."),
)


class NotFound(EngineError):
    """Podman does not know that container, network or image."""


class Conflict(EngineError):
    """The object exists already, or is in a state that does not allow the request."""


class Libpod:
    """A connection pool; `ensure` starts the service if the socket does not answer."""

    def __init__(self, socket: Path, ensure: Callable[[], Awaitable[None]]) -> None:
        self.socket = socket
        self._ensure = ensure
        self._client: httpx.AsyncClient | None = None
        self._info: Any = None

    async def info(self) -> Any:
        """Return what Podman says of the machine, which stays the same while this process runs.

        It asks dpkg and others each time, which takes it half a second of processor time.
        """
        if self._info is None:
            self._info = await self.get("/info")
        return self._info

    async def get(self, path: str, **params: object) -> Any:
        return (await self.request("GET", path, params=params)).json()

    async def post(self, path: str, body: object = None, **params: object) -> Any:
        response = await self.request("POST", path, json=body, params=params)
        return response.json() if response.content else None

    async def delete(self, path: str, **params: object) -> None:
        """Delete an object; a missing one is not an error."""
        try:
            await self.request("DELETE", path, params=params)
        except NotFound:
            return

    async def exists(self, path: str) -> bool:
        try:
            await self.request("GET", f"{path}/exists")
        except NotFound:
            return False
        return True

    async def request(
        self, method: str, path: str, *, retried: bool = False, **options: Any
    ) -> httpx.Response:
        """Send a request; repeat it once if the service died, as every request here may be repeated."""
        options["params"] = _flat(options.get("params") or {})
        try:
            response = await self._http().request(method, path, **options)
        except httpx.TimeoutException as error:
            raise EngineUnavailable(f"Podman took too long to answer {method} {path}.") from error
        except httpx.TransportError as error:
            if retried or "content" in options:
                raise EngineUnavailable(
                    f"Podman closed the connection during {method} {path}; try again."
                ) from error
            logger.warning("Podman's service does not answer %s %s; starting it again", method, path)
            await self._ensure()
            return await self.request(method, path, retried=True, **options)
        _raise_for(response.status_code, response.content, path)
        return response

    @asynccontextmanager
    async def stream(self, path: str, **params: object) -> AsyncGenerator[httpx.Response, None]:
        """Open a response without end, such as events or followed logs."""
        timeout = httpx.Timeout(10.0, read=None, pool=None)
        try:
            async with self._http().stream("GET", path, params=_flat(params), timeout=timeout) as response:
                if response.status_code >= 400:
                    _raise_for(response.status_code, await response.aread(), path)
                yield response
        except httpx.TransportError as error:
            raise EngineUnavailable(f"Podman ended the stream {path}: {error}.") from error

    async def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._client:
            await self._client.aclose()
            self._client = None

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=str(self.socket)),
                base_url=f"http://podman{API}",
                timeout=httpx.Timeout(120.0, connect=10.0, pool=None),
            )
        return self._client


def _flat(params: Mapping[str, object]) -> dict[str, Any]:
    """Return the parameters with booleans as Podman writes them and filters as JSON."""
    flat: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, dict):
            value = json.dumps(value)
        flat[name] = value
    return flat


def _raise_for(status: int, content: bytes, path: str) -> None:
    if status < 400:
        return
    try:
        answer = json.loads(content)
        message = answer.get("message") or answer.get("cause") or content.decode(errors="replace")
    except ValueError:
        message = content.decode(errors="replace") or f"status {status}"
    # A container that is removed while Podman works on it is answered with 500.
    if status == 404 or "no such container" in message:
        raise NotFound(f"Podman: {message.strip()}.")
    # A name in use by a request whose sender has died is answered with 500, too.
    if status == 409 or ("container name" in message and "already in use" in message):
        raise Conflict(f"Podman: {message.strip()}.")
    hint = next((hint for sign, hint in _HINTS if sign in message), "")
    raise EngineError(f"Podman refused {path.split('?')[0]}: {message.strip()}. {hint}".rstrip())


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
