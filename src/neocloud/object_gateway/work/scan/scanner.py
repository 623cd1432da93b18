"""Reads what is installed in images that were pushed, once the operator has provided advisories.

Each image is read by a process of its own, which gets its layers through a pipe, has limits of memory and
time, and returns a list of packages. Registries take turns, so nobody's images keep others' waiting.
"""

import asyncio
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from neocloud.core.clock import Clock
from neocloud.core.loops import every
from neocloud.object_gateway.work.scan import advisories, packages
from neocloud.object_gateway.work.scan.inventory import LENGTH_BYTES, Inventory
from neocloud.object_gateway.work.scan.packages import Waiting
from neocloud.object_store.errors import BlobUnknown, Damaged, ManifestUnknown, NoSuchBucket, ObjectStoreError
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket, BucketKind, BucketState

logger = logging.getLogger(__name__)
ROUND_SECONDS = 10.0
IMAGE_SECONDS = 300.0
"""How long the reading of one image may take."""
INDEX_SECONDS = 900.0
MAX_ANSWER_BYTES = 8 * 1024**2
_TOO_LONG = "its layers take longer to read than is waited for"


class Scanner:
    def __init__(self, store: ObjectStore, clock: Clock, file: Path, index: Path) -> None:
        """`file` is what the operator provides, `index` what is made of it."""
        self._store = store
        self._clock = clock
        self._file = file
        self._index = index
        self._after: dict[str, int] = {}
        self._refused: tuple[int, int] | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        problem, expected = "Images could not be read", (ObjectStoreError, OSError)
        await every(ROUND_SECONDS, self.round, problem, self._clock, expected=expected)

    async def round(self) -> None:
        """Read all images that were not read yet. Raises ObjectStoreError, OSError."""
        if not await self._refresh():
            return
        registries = [each for each in self._store.buckets() if _is_served(each)]
        while registries:
            registries = [each for each in registries if await self._read_next(each)]

    async def _refresh(self) -> bool:
        """Rebuild the index if the file has changed; return whether there is one."""
        try:
            state = self._file.stat()
        except FileNotFoundError:
            self._index.unlink(missing_ok=True)
            return False
        now = (state.st_mtime_ns, state.st_size)
        if now in (advisories.stamp(self._index), self._refused):
            return self._index.exists()
        process = await _start(advisories.__name__, str(self._file), str(self._index), errors=PIPE)
        try:
            async with asyncio.timeout(INDEX_SECONDS):
                output, errors = await process.communicate()
        finally:
            await _end(process)
        if process.returncode:
            self._refused = now
            logger.warning("The advisories in %s cannot be used: %s", self._file, errors[-500:].decode())
        else:
            logger.info("There are %s advisories in %s", output.decode(), self._file)
        return self._index.exists()

    async def _read_next(self, registry: Bucket) -> bool:
        """Read an image of a registry; return whether there was one."""
        engine = self._store.engine
        row = engine.database.buckets.find(registry.id)
        if row is None:
            return False
        found = packages.next_waiting(engine.database.reading, row.number, self._after.get(registry.id, 0))
        if found is None:
            return False
        self._after[registry.id] = found.number
        try:
            inventory, problem = await self._read(registry, found)
        except (BlobUnknown, ManifestUnknown, NoSuchBucket):
            return True  # it was deleted meanwhile
        except Damaged as error:
            inventory, problem = Inventory(), f"the registry cannot read it: {error}"
        except ObjectStoreError:
            del self._after[registry.id]  # once the store is there again
            raise

        def work(tx: Transaction) -> None:
            packages.put(tx, tx.any_bucket(registry.id).number, found.digest, inventory, problem)

        with suppress(NoSuchBucket):
            await engine.database.write(work)
        return True

    async def _read(self, registry: Bucket, image: Waiting) -> tuple[Inventory, str]:
        """Return what an image has, and why that could not be found out."""
        process = await _start("neocloud.object_gateway.work.scan.layers", errors=DEVNULL)
        feeding = asyncio.create_task(self._feed(process, registry, image))
        try:
            async with asyncio.timeout(IMAGE_SECONDS):
                assert process.stdout is not None
                answer = await _read_all(process.stdout)
                if len(answer) > MAX_ANSWER_BYTES:
                    process.kill()
                await feeding
                await process.wait()
        except TimeoutError:
            return Inventory(), _TOO_LONG
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await _end(process)
        return _understood(answer, process.returncode)

    async def _feed(self, process: Process, registry: Bucket, image: Waiting) -> None:
        """Write the layers of an image to its process, and end its input. Raises ObjectStoreError."""
        pipe = process.stdin
        assert pipe is not None
        try:
            for digest in await self._layers(registry, image):
                async with await self._store.open_blob(registry.id, image.repository, digest) as reader:
                    pipe.write(reader.length.to_bytes(LENGTH_BYTES, "big"))
                    async for chunk in reader:
                        pipe.write(chunk)
                        await pipe.drain()
        except (BrokenPipeError, ConnectionResetError):
            return  # it has read enough
        finally:
            pipe.close()

    async def _layers(self, registry: Bucket, image: Waiting) -> Sequence[str]:
        """Return the digests of the layers that the registry has, which was checked when it was pushed."""
        async with await self._store.open_manifest(registry.id, image.repository, image.digest) as reader:
            content = b"".join([chunk async for chunk in reader])
        document: dict[str, Any] = orjson.loads(content)
        described = [each for each in document.get("layers", []) if not each.get("urls")]
        return [each["digest"] for each in described]


def _understood(answer: bytes, code: int | None) -> tuple[Inventory, str]:
    if code == 0 and len(answer) <= MAX_ANSWER_BYTES:
        found: dict[str, Any] = orjson.loads(answer)
        if "problem" in found:
            return Inventory(), found["problem"]
        sources = [(str(name), str(version)) for name, version in found["sources"]]
        return Inventory(found["release"], found["packages"], sources), ""
    return Inventory(), "its layers take more time or memory to read than they may"


async def _read_all(stream: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while piece := await stream.read(65_536):
        found += piece
        if len(found) > MAX_ANSWER_BYTES:
            break
    return bytes(found)


def _is_served(bucket: Bucket) -> bool:
    return bucket.kind is BucketKind.REGISTRY and bucket.state is BucketState.ACTIVE


async def _start(module: str, *arguments: str, errors: int) -> Process:
    command = [sys.executable, "-I", "-m", module, *arguments]
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=errors, env={}, cwd="/"
    )


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
