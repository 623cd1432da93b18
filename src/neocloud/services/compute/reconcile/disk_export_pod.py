"""The pod of an export, which reads a copy of the disk (`disk_export.py`), and the file as it is read there.

The pod has the copy, its key, and no network. The bytes go through this process in pieces, by the engine's
own protocol. Nothing is stored on the way, decrypted or not.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from neocloud.core.reconcile.reconciler import Failed, RetryLater
from neocloud.engines.base import Engine, EngineError, Reference
from neocloud.engines.calls import engine_call
from neocloud.engines.manifest import (
    Container,
    LinuxCapabilities,
    Manifest,
    Mount,
    NetworkPolicy,
    Pod,
    Secret,
    SecurityContext,
    Volume,
    limits,
)
from neocloud.services.compute import disk_export
from neocloud.services.compute.disk_export import DISK, KEY, MOST_READ, PLAN, WORK
from neocloud.services.compute.render import NOUN_LABEL
from neocloud.services.compute.types import DiskReason

EXPORT_POD = "export"
EXPORT_FILE = "disk_export.py"
PROGRAM = ("/usr/bin/python3", "-I", f"{KEY.parent}/{EXPORT_FILE}")
EXPORT_MEMORY_MIB = 1024
WORK_SPACE = "64Mi"
EXPORT_CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER"),  # gives QEMU's programs a folder and the key, and reads the socket
    *("SETUID", "SETGID", "SETPCAP"),  # runs them as another user without any of these
)
EXPORT_SOURCE = Path(disk_export.__file__).read_bytes()
EXEC_SECONDS = 120.0
LOG_LINES = 20
LOG_BYTES = 4096
SPARE_OUTPUT_BYTES = 2**16


def export_objects(export_id: str, launcher: str, key: str) -> list[Manifest]:
    """Return the pod that reads the volume of an export; the volume is not written."""
    return program_objects(
        export_id,
        EXPORT_POD,
        launcher,
        PROGRAM,
        files={EXPORT_FILE: EXPORT_SOURCE} | ({KEY.name: key.encode()} if key else {}),
        memory_mib=EXPORT_MEMORY_MIB,
        capabilities=EXPORT_CAPABILITIES,
        mounts=(
            Mount("disk", str(DISK.parent), read_only=True),
            Mount("program", str(KEY.parent), read_only=True),
            Mount("work", str(WORK)),
        ),
        volumes=(Volume.of_claim("disk", export_id), Volume.in_memory("work", WORK_SPACE)),
    )


def program_objects(
    owner_id: str,
    name: str,
    image: str,
    command: Sequence[str],
    *,
    files: Mapping[str, bytes],
    memory_mib: int,
    capabilities: Sequence[str],
    mounts: Sequence[Mount],
    volumes: Sequence[Volume],
) -> list[Manifest]:
    """Return a pod in the namespace of `owner_id` that runs a program on a hostile disk and reaches no
    network. `files` are in the volume "program"."""
    container = Container(
        name=name,
        image=image,
        image_pull_policy="Never",
        command=tuple(command),
        resources=limits(cpus=1, memory_mib=memory_mib),
        security_context=SecurityContext(
            allow_privilege_escalation=False,
            capabilities=LinuxCapabilities(add=tuple(capabilities), drop=("ALL",)),
            read_only_root_filesystem=True,
        ),
        volume_mounts=tuple(mounts),
    )
    labels = {NOUN_LABEL: owner_id}
    return [
        NetworkPolicy(name="same-namespace-only", namespace=owner_id, denies_egress=True),
        Secret(name=name, namespace=owner_id, labels=labels, contents=files),
        Pod(
            name=name,
            namespace=owner_id,
            labels=labels,
            restart_policy="Never",
            termination_grace_period_seconds=10,
            automount_service_account_token=False,
            enable_service_links=False,
            containers=(container,),
            volumes=(*volumes, Volume.of_secret("program", name)),
        ),
    ]


def export_references(export_id: str) -> Sequence[Reference]:
    """Return what goes once the object is whole."""
    return tuple(Reference(kind, export_id, EXPORT_POD) for kind in ("Pod", "Secret"))


async def read_file_size(engine: Engine, export_id: str) -> int:
    """Return how large the file is, once the running pod knows. Raises RetryLater; Failed."""
    pod = Reference("Pod", export_id, EXPORT_POD)
    done = await engine_call(engine.exec(pod, ("cat", f"{WORK}/{PLAN}"), timeout_seconds=EXEC_SECONDS))
    if done.exit_code:
        raise RetryLater("reading the tables of the disk")
    try:
        size = int(json.loads(done.stdout[:LOG_BYTES])["file_size_bytes"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise RetryLater(f"the pod does not say how large the disk is: {error!r}") from error
    if not 0 < size <= 2 * disk_export.LARGEST_DISK_BYTES:
        raise Failed(DiskReason.EXPORT_REFUSED, f"The disk cannot be exported: it would have {size:,} bytes.")
    return size


async def read_problem(engine: Engine, export_id: str) -> str:
    """Return why the pod has ended; "" where it did not end by itself."""
    page = await engine_call(engine.log_page(Reference("Pod", export_id, EXPORT_POD), tail=LOG_LINES))
    try:
        return str(json.loads(page.lines[-1][:LOG_BYTES])["problem"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""


class ExportStream:
    """The qcow2 file, read from the pod in a thread. Raises EngineError; InterruptedError once stopped."""

    def __init__(self, engine: Engine, export_id: str, size: int) -> None:
        self._engine = engine
        self._pod = Reference("Pod", export_id, EXPORT_POD)
        self._loop = asyncio.get_running_loop()
        self._size = size
        self._piece = memoryview(b"")
        self._digest = hashlib.sha256()
        self._is_stopped = False
        self.read_bytes = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self, size: int) -> bytes:
        if self._is_stopped:
            raise InterruptedError("the export was stopped")
        if not self._piece and self.read_bytes < self._size:
            asking = asyncio.run_coroutine_threadsafe(self.next_piece(), self._loop)
            self._piece = memoryview(asking.result(2 * EXEC_SECONDS))
        found, self._piece = bytes(self._piece[:size]), self._piece[size:]
        return found

    def stop(self) -> None:
        """Let a thread that still reads end."""
        self._is_stopped = True

    async def next_piece(self) -> bytes:
        """Return the bytes that follow; none at the end."""
        wanted = min(MOST_READ, self._size - self.read_bytes)
        if not wanted:
            return b""
        done = await self._engine.exec(
            self._pod,
            (*PROGRAM, str(self.read_bytes), str(wanted)),
            timeout_seconds=EXEC_SECONDS,
            max_output_bytes=wanted + SPARE_OUTPUT_BYTES,
        )
        if done.exit_code or len(done.stdout) != wanted:
            said = done.stderr.decode(errors="replace").strip()[-200:]
            raise EngineError(f"the pod gave {len(done.stdout):,} of {wanted:,} bytes: {said}")
        self._digest.update(done.stdout)
        self.read_bytes += len(done.stdout)
        return done.stdout
