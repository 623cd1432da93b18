"""Writes the disk of an image, a snapshot or a disk to a bucket, once: a copy of its volume is read in a pod
without rights, and sent to the bucket with the rights of the account that made the export.

The copy is what makes it consistent: the source can be used, changed and deleted as soon as there is one. It
goes with the pod once the object is whole, once it cannot be written, and with the export. The sent bytes
depend on the copy alone, so an export whose control plane was killed is sent again, and the object that it
may have made already is recognised as its own.
"""

from collections.abc import Callable, Sequence

from neocloud.core import wire
from neocloud.core.reconcile.background import BackgroundWork
from neocloud.core.reconcile.reconciler import (
    IDLE_RESYNC_SECONDS,
    POLL_SECONDS,
    RESYNC_SECONDS,
    RETRY_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine, EngineError, Observation, PodPhase
from neocloud.engines.calls import engine_call
from neocloud.messages.neocloud.compute.v1 import DiskExport, DiskExportStatus
from neocloud.services.compute.encryption import disk_key
from neocloud.services.compute.reconcile.copies import CopyReconciler
from neocloud.services.compute.reconcile.disk_export_pod import (
    EXPORT_POD,
    ExportStream,
    export_objects,
    export_references,
    read_file_size,
    read_problem,
)
from neocloud.services.compute.reconcile.volumes import VolumeScope
from neocloud.services.compute.render import VolumeSource, VolumeView
from neocloud.services.compute.rules.disk_exports import destination_of, source_of
from neocloud.services.compute.types import DISK_EXPORT, DiskReason, is_public_image
from neocloud.services.storage.public import AccessProblem, ObjectWrites, Unwritable

MOST_EXPORTS = 2
"""At the same time, of the whole cloud."""
DONE, FAILED = "READY", "ERROR"
ExportScope = VolumeScope[DiskExport, VolumeView]


class DiskExportReconciler(CopyReconciler[DiskExport]):
    kind = DISK_EXPORT

    def __init__(
        self, engine: Engine, store: Store, writes: Callable[[], ObjectWrites], launcher: Callable[[], str]
    ) -> None:
        super().__init__(engine, store)
        self._writes = writes
        self._launcher = launcher
        self._sending = BackgroundWork[ExportStream](MOST_EXPORTS)

    def source_id(self, resource: DiskExport) -> str:
        return source_of(resource.spec)

    async def scope(self, context: Context) -> ExportScope:
        export = wire.resource_message(context.resource)
        source_id = source_of(export.spec)
        source = VolumeSource(resource_id=source_id)
        if is_public_image(source_id):
            row = await context.get(source_id)
            source = VolumeSource(machine_image=row.name if row else "")
        volume = VolumeView(export.metadata.id, export.status.disk_size_bytes, source)
        has_ended = export.status.sha256 or context.resource.state == FAILED
        observation = Observation() if has_ended else await self._engine.observe(export.metadata.id)
        return VolumeScope(context, export, volume, observation)

    def steps(self, scope: ExportScope) -> Sequence[Step[ExportScope]]:
        if scope.resource.status.sha256:
            return (Step("Remove the copy", self._remove_all),)
        if scope.context.resource.state == FAILED:
            return (Step("Remove the copy", self._remove_all), Step("Say why", _fail_again))
        return (
            Step("Wait for the source", self.wait_for_source),
            Step("Keep its key", self.keep_key),
            Step("Copy the disk", self.create_volume),
            Step("Read the disk", self._read_disk),
            Step("Write the object", self._write_object),
            Step("Remove the copy", self._remove_all),
        )

    def delete_steps(self, scope: ExportScope) -> Sequence[Step[ExportScope]]:
        return (Step("Stop writing", self._remove_all),)

    def status(self, scope: ExportScope, result: ReconcileResult) -> ReconcileResult:
        status = DiskExportStatus()
        status.CopyFrom(scope.resource.status)
        state = "DELETING" if scope.is_deleting else FAILED if result.error else "CREATING"
        if not scope.is_deleting and result.is_done:
            state = DONE
        elif not scope.is_deleting and scope.context.resource.state in (DONE, FAILED):
            state = scope.context.resource.state  # the engine did not answer
        status.state = DiskExportStatus.State.Value(state)
        status.reconciling = state == "CREATING"
        if state != FAILED or result.error:
            status.state_description = result.message
        return result.with_status(status, state, IDLE_RESYNC_SECONDS)

    async def _read_disk(self, scope: ExportScope) -> None:
        """Start the pod, and wait until it knows the disk. Raises RetryLater; Failed."""
        export_id = scope.volume.id
        if self._sending.find(export_id) is not None:
            return
        pod = scope.observation.pod(EXPORT_POD)
        if pod is None:
            key = await self._store.read(lambda tx: disk_key(tx, export_id))
            await engine_call(self._engine.apply(export_objects(export_id, self._launcher_image(), key)))
            raise RetryLater("its pod starts", delay_seconds=POLL_SECONDS)
        if pod.phase is PodPhase.PENDING:
            raise RetryLater("its pod starts", delay_seconds=POLL_SECONDS)
        if pod.phase is not PodPhase.RUNNING:
            if problem := await read_problem(self._engine, export_id):
                raise await self._failed(
                    scope, DiskReason.EXPORT_REFUSED, f"The disk cannot be exported: it {problem}."
                )
            await engine_call(self._engine.remove(export_references(export_id)))
            raise RetryLater("its pod was interrupted, and begins again", delay_seconds=RETRY_SECONDS)
        scope.resource.status.object_size_bytes = await read_file_size(self._engine, export_id)

    async def _write_object(self, scope: ExportScope) -> None:
        """Send the file to the bucket beside the runs. Raises RetryLater until it is whole; Failed."""
        export_id, status = scope.volume.id, scope.resource.status
        work = self._sending.find(export_id)
        if work is None:
            self._start(scope)
            raise RetryLater("writing the object", delay_seconds=POLL_SECONDS)
        stream = work.label
        status.sent_bytes = stream.read_bytes
        try:
            is_going_on = self._sending.is_going_on(export_id)
        except Unwritable as error:
            if error.problem is AccessProblem.UNANSWERED:
                raise RetryLater(str(error), delay_seconds=RETRY_SECONDS) from error
            raise await self._failed(scope, DiskReason.EXPORT_UNWRITABLE, str(error)) from error
        except EngineError as error:
            raise RetryLater(f"the export was interrupted: {error}", delay_seconds=RETRY_SECONDS) from error
        if is_going_on:
            sent = f"{stream.read_bytes:,} of {status.object_size_bytes:,} bytes"
            raise RetryLater(f"writing the object: {sent}", delay_seconds=POLL_SECONDS)
        status.sha256 = stream.sha256

    def _start(self, scope: ExportScope) -> None:
        export_id, place = scope.volume.id, destination_of(scope.resource.spec)
        stream = ExportStream(self._engine, export_id, scope.resource.status.object_size_bytes)
        writes = self._writes()

        async def send() -> None:
            try:
                await writes.put_new(export_id, place, stream)
            finally:
                stream.stop()

        self._sending.start(export_id, stream, send)

    async def _failed(self, scope: ExportScope, reason: DiskReason, message: str) -> Failed:
        await self._remove_all(scope)
        return Failed(reason, f"{message} Delete this export, and create another.")

    async def _remove_all(self, scope: ExportScope) -> None:
        """End the writing, and remove the pod, the key in it, and the copy."""
        work = self._sending.find(scope.volume.id)
        if work is not None:
            work.label.stop()
            self._sending.cancel(scope.volume.id)
        removed = (*export_references(scope.volume.id), *self.references(scope.volume))
        await engine_call(self._engine.remove(removed))

    def _launcher_image(self) -> str:
        try:
            return self._launcher()
        except OSError as error:
            raise RetryLater(
                "the image `launcher` is not built, which reads disks: the operator runs"
                " `neo image build machine`",
                delay_seconds=RESYNC_SECONDS,
            ) from error


async def _fail_again(scope: ExportScope) -> None:
    """An export that failed stays so: what it was to write may be another disk by now."""
    raise Failed(DiskReason.EXPORT_FAILED, scope.resource.status.state_description)
