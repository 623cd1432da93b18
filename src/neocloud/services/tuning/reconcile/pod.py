"""The pod of a job: started, watched, stopped with a checkpoint, and restarted when it was lost."""

import asyncio

from neocloud.core.reconcile.reconciler import POLL_SECONDS, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.engines.base import ObservedPod, PodPhase, Reference
from neocloud.engines.calls import engine_call
from neocloud.messages.neocloud.inference.v1 import Model
from neocloud.services.compute.public import preset
from neocloud.services.tuning.reconcile.scope import Scope, handle_loss, start_next_attempt
from neocloud.services.tuning.reconcile.workspace import base_weights, code_folder
from neocloud.services.tuning.render import ATTEMPT_LABEL, POD, JobView, render
from neocloud.services.tuning.types import namespace
from neocloud.services.tuning.work_folder import Stopped

IMAGE = "jail"


class PodBackend:
    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._engine = dependencies.engine

    async def ensure(self, scope: Scope, base: Model) -> None:
        pod = scope.observation.pod(POD)
        if isinstance(scope.outcome, Stopped):  # for example because the whole cloud was stopped
            await start_next_attempt(self._dependencies.store, scope, scope.runtime)
        if scope.outcome:
            return
        if pod is not None and pod.labels.get(ATTEMPT_LABEL) != str(scope.runtime.attempt):
            await self._engine.remove([pod.reference])
            pod = None
        if pod is None:
            await self._engine.apply(render(await self._view(scope, base)))
            raise RetryLater("the pod is starting", delay_seconds=POLL_SECONDS)
        if pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED):
            await self._handle_end(scope, pod)
        elif pod.phase is PodPhase.PENDING:
            raise RetryLater(pod.message or "the pod is starting", delay_seconds=POLL_SECONDS)
        elif not await asyncio.to_thread(lambda: scope.folder.has_begun_training):
            raise RetryLater("the files are being checked", delay_seconds=POLL_SECONDS)

    async def stop(self, scope: Scope) -> None:
        pod = scope.observation.pod(POD)
        if pod is None or pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED) or scope.outcome:
            return
        terminate = self._engine.exec(pod.reference, ["sh", "-c", "kill -TERM 1"])
        # An error means that it has just ended or has not begun.
        await engine_call(terminate, waiting="it is being stopped", retry_seconds=POLL_SECONDS)
        raise RetryLater("its step and a checkpoint are being finished", delay_seconds=POLL_SECONDS)

    async def remove(self, scope: Scope) -> None:
        name = namespace(scope.job_id)
        if scope.observation.pods or scope.observation.others:
            await self._engine.remove([Reference("Namespace", name, name)])

    async def _handle_end(self, scope: Scope, pod: ObservedPod) -> None:
        """Read the outcome that the pod has just left; without one it was killed."""
        scope.outcome = await asyncio.to_thread(scope.folder.outcome, scope.runtime.attempt)
        if scope.outcome:
            return
        await handle_loss(self._dependencies.store, scope, "pod", pod.message or "no reason was left")

    async def _view(self, scope: Scope, base: Model) -> JobView:
        shape = preset(scope.job.spec.platform, scope.job.spec.preset)
        try:
            image = self._dependencies.settings.image(IMAGE)
        except FileNotFoundError as error:
            raise Failed("ImageMissing", f"The image {IMAGE} is not built; run neo image build.") from error
        weights = base_weights(self._dependencies, base)
        return JobView(
            id=scope.job_id,
            attempt=scope.runtime.attempt,
            image=image,
            work_folder=str(scope.folder.path),
            code_folder=str(code_folder()),
            model_folder=str(weights.root),
            model_path=weights.path,
            cpus=shape.vcpu,
            memory_mib=shape.memory_mib,
            gpus=shape.gpus,
        )
