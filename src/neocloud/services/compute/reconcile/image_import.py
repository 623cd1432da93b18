"""Imports the disk of an image from a bucket: read with the rights of the account that made the image, and
checked and converted in a pod that has no rights and no network (`disk_import.py`).

The bytes go through this process in pieces, so that only the engine's own protocol is needed. The copy
continues beside the runs, which look at the pod: what it has is complete once it has size and digest. A copy
that was interrupted begins again; a conversion continues in the pod whatever happens here.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from neocloud.core.reconcile.background import BackgroundWork
from neocloud.core.reconcile.reconciler import POLL_SECONDS, RESYNC_SECONDS, RETRY_SECONDS, Failed, RetryLater
from neocloud.engines.base import Engine, EngineError, ExecResult, Observation, PodPhase, Reference
from neocloud.engines.calls import engine_call
from neocloud.engines.manifest import (
    Manifest,
    Mount,
    Volume,
)
from neocloud.messages.nebius.compute.v1 import Image
from neocloud.services.compute import disk_import
from neocloud.services.compute.disk_import import FOLDER, INCOMING, LARGEST_STORED_BYTES, SPARE_BYTES, WHOLE
from neocloud.services.compute.reconcile.disk_export_pod import program_objects
from neocloud.services.compute.types import DiskReason
from neocloud.services.storage.public import AccessProblem, ObjectLocation, ObjectReads, Unreadable

MOST_COPIES = 2
"""At the same time, of the whole cloud."""
PIECE_BYTES = 16 * 1024**2
EXEC_SECONDS = 60.0
LOG_LINES = 20

IMPORT_POD = "import"
IMPORT_FILE, IMPORT_CONFIGURATION = "disk_import.py", "/etc/neocloud/import"
IMPORT_MEMORY_MIB = 1024
IMPORT_CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER"),  # gives qemu-img a folder, and takes the disk from it
    *("SETUID", "SETGID", "SETPCAP"),  # runs qemu-img as another user without any of these
)
IMPORT_SOURCE = Path(disk_import.__file__).read_bytes()


def import_objects(image_id: str, launcher: str, key: str) -> list[Manifest]:
    """Return the pod that makes the disk of an image from a file that the control plane writes into it. It
    reaches nothing, and has nothing to read but this file and the key of the image."""
    return program_objects(
        image_id,
        IMPORT_POD,
        launcher,
        command=("/usr/bin/python3", "-I", f"{IMPORT_CONFIGURATION}/{IMPORT_FILE}"),
        files={IMPORT_FILE: IMPORT_SOURCE, disk_import.KEY.name: key.encode()},
        memory_mib=IMPORT_MEMORY_MIB,
        capabilities=IMPORT_CAPABILITIES,
        mounts=(
            Mount("image", str(disk_import.FOLDER)),
            Mount("program", IMPORT_CONFIGURATION, read_only=True),
        ),
        volumes=(Volume.of_claim("image", image_id),),
    )


def source_place(image: Image) -> ObjectLocation:
    source = image.spec.source_storage
    return ObjectLocation(source.bucket_name, source.object_name)


class ImageImports:
    def __init__(self, engine: Engine, reads: Callable[[], ObjectReads], launcher: Callable[[], str]) -> None:
        self._engine = engine
        self._reads = reads
        self._launcher = launcher
        self._copying = BackgroundWork["PodFile"](MOST_COPIES)

    async def finish(self, image: Image, observed: Observation, key: str) -> int:
        """Return the size of the disk once the volume has it, encrypted with the key. Raises RetryLater;
        Failed."""
        image_id = image.metadata.id
        pod = observed.pod(IMPORT_POD)
        if pod is None:
            await engine_call(self._engine.apply(import_objects(image_id, self._launcher_image(), key)))
            raise RetryLater("its import starts", delay_seconds=POLL_SECONDS)
        if pod.phase is PodPhase.RUNNING:
            raise RetryLater(await self._copied(image), delay_seconds=POLL_SECONDS)
        if pod.phase is PodPhase.PENDING:
            raise RetryLater("its import starts", delay_seconds=POLL_SECONDS)
        self._copying.cancel(image_id)
        result = await self._result(image_id)
        if "problem" in result:
            raise Failed(
                DiskReason.SOURCE_REFUSED,
                f"{source_place(image)} cannot be used: it {result['problem']}."
                " Delete this image, and create another.",
            )
        await engine_call(self._engine.remove(import_references(image_id)))
        size = result.get("size_bytes")
        if not isinstance(size, int):
            raise RetryLater("its import was interrupted, and begins again", delay_seconds=RETRY_SECONDS)
        return size

    def _launcher_image(self) -> str:
        try:
            return self._launcher()
        except OSError as error:
            raise RetryLater(
                "the image `launcher` is not built, which imports disks: the operator runs"
                " `neo image build machine`",
                delay_seconds=RESYNC_SECONDS,
            ) from error

    async def cancel(self, image_id: str) -> None:
        self._copying.cancel(image_id)
        await engine_call(self._engine.remove(import_references(image_id)))

    async def _copied(self, image: Image) -> str:
        """Copy the object to the pod; return the step in progress. Raises Failed; RetryLater."""
        image_id, place = image.metadata.id, source_place(image)
        try:
            is_going_on = self._copying.is_going_on(image_id)
        except Unreadable as error:
            if error.problem is AccessProblem.UNANSWERED:
                raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
            raise Failed(DiskReason.SOURCE_UNREADABLE, str(error)) from error
        except EngineError as error:
            raise RetryLater(f"the copy was interrupted: {error}", delay_seconds=RETRY_SECONDS) from error
        if not is_going_on:
            file = PodFile(self._engine, image_id)
            if await file.is_whole():
                return "checking and converting it"
            largest = max(0, min(LARGEST_STORED_BYTES, await file.free_bytes() - SPARE_BYTES))
            reads = self._reads()

            async def copy() -> None:
                try:
                    await reads.fetch(image_id, place, file, largest)
                    await file.finish()
                finally:
                    file.stop()

            self._copying.start(image_id, file, copy)
        found = self._copying.find(image_id)
        return f"copying it from its bucket: {found.label.sent_bytes:,} bytes" if found else "copying it"

    async def _result(self, image_id: str) -> dict[str, object]:
        """Return the last line of the program; nothing where it did not end by itself."""
        reference = Reference("Pod", image_id, IMPORT_POD)
        page = await engine_call(self._engine.log_page(reference, tail=LOG_LINES))
        try:
            return json.loads(page.lines[-1]) if page.lines else {}
        except ValueError:
            return {}


class PodFile:
    """The file in the pod, written from a thread as an empty file is. Raises EngineError."""

    def __init__(self, engine: Engine, image_id: str) -> None:
        self._engine = engine
        self._pod = Reference("Pod", image_id, IMPORT_POD)
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._digest = hashlib.sha256()
        self._is_stopped = False
        self.sent_bytes = 0

    async def is_whole(self) -> bool:
        return (await engine_call(self._run("cat", f"{FOLDER}/{WHOLE}"))).exit_code == 0

    async def free_bytes(self) -> int:
        """Return what is free of the disk that the volume lies on."""
        found = await engine_call(self._run("stat", "--file-system", "--format=%a %S", str(FOLDER)))
        free, block = found.stdout.split()
        return int(free) * int(block)

    def write(self, content: bytes) -> int:
        if self._is_stopped:
            raise InterruptedError("the import was stopped")
        self._waiting += content
        if len(self._waiting) >= PIECE_BYTES:
            sending = asyncio.run_coroutine_threadsafe(self._send(), self._loop)
            sending.result(2 * EXEC_SECONDS)
        return len(content)

    def seek(self, _: int) -> None:
        """Begin again, as the reader does where an object arrived damaged."""
        self._waiting.clear()
        self._digest, self.sent_bytes = hashlib.sha256(), 0

    def truncate(self) -> None: ...

    async def finish(self) -> None:
        """Send the rest, and say that it was all."""
        await self._send()
        facts = {"size_bytes": self.sent_bytes, "sha256": self._digest.hexdigest()}
        await self._write(WHOLE, json.dumps(facts).encode(), 0)

    def stop(self) -> None:
        """Let a thread that still writes end."""
        self._is_stopped = True

    async def _send(self) -> None:
        piece = bytes(self._waiting)
        self._waiting.clear()
        if piece or not self.sent_bytes:
            await self._write(INCOMING, piece, self.sent_bytes)
        self._digest.update(piece)
        self.sent_bytes += len(piece)

    async def _write(self, name: str, content: bytes, offset: int) -> None:
        """Write at an offset; at 0, what was there before goes."""
        words = ["bs=1M", "iflag=fullblock", "oflag=seek_bytes", f"seek={offset}", "status=none"]
        kept = ["conv=notrunc"] if offset else []
        done = await self._run("dd", f"of={FOLDER}/{name}", *words, *kept, stdin=content)
        if done.exit_code:
            raise EngineError(
                f"the pod could not write: {done.stderr.decode(errors='replace').strip()[:200]}"
            )

    async def _run(self, *command: str, stdin: bytes = b"") -> ExecResult:
        return await self._engine.exec(self._pod, command, stdin=stdin, timeout_seconds=EXEC_SECONDS)


def import_references(image_id: str) -> Sequence[Reference]:
    """Return what goes once the volume has the disk."""
    return (Reference("Pod", image_id, IMPORT_POD), Reference("Secret", image_id, IMPORT_POD))
