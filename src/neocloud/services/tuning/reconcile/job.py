"""A fine-tuning job: stage the data, train in a pod or a Slurm job, register the model.

Progress is in the job's folder, so a run may be repeated at any moment and a killed pod continues from its
newest checkpoint; an attempt that has left an outcome is never run again.
"""

import asyncio
from collections.abc import Sequence

from neocloud.core.reconcile.reconciler import Context, Step
from neocloud.core.service import Dependencies
from neocloud.services.tuning.reconcile.pod import JobPod
from neocloud.services.tuning.reconcile.registration import keep_results, register_model
from neocloud.services.tuning.reconcile.scope import Scope, read_scope
from neocloud.services.tuning.reconcile.slurm import JobOnSlurm
from neocloud.services.tuning.reconcile.slurm_job import shown_as
from neocloud.services.tuning.reconcile.status import job_status
from neocloud.services.tuning.reconcile.workspace import base_model, lay_out
from neocloud.services.tuning.render import MODEL
from neocloud.services.tuning.runtime_state import Wish
from neocloud.services.tuning.types import JOB


class FineTuningJobReconciler:
    kind = JOB
    status = staticmethod(job_status)

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._pod = JobPod(dependencies)
        self._slurm = JobOnSlurm(dependencies)

    async def scope(self, context: Context) -> Scope:
        return await read_scope(context, self._dependencies)

    def steps(self, scope: Scope) -> Sequence[Step]:
        clear = Step("Clear the place", self._place(scope).remove)
        if scope.has_ended:
            return (Step("Clear the place", self._remove),)
        if scope.record.wish is Wish.PAUSE:
            return (Step("Stop after a checkpoint", self._place(scope).stop), clear)
        steps = (Step("Lay out the data", self._lay_out), Step("Train", self._train))
        return (*steps, Step("Keep the results", self._keep), Step("Clear the place", self._clear))

    def delete_steps(self, scope: Scope) -> Sequence[Step]:
        return (Step("Clear the place", self._remove), Step("Remove its files", self._remove_files))

    async def _lay_out(self, scope: Scope) -> None:
        if scope.outcome:
            return
        base = await base_model(scope.context, scope.job.spec.model_id)
        on_slurm = scope.job.spec.slurm_cluster_id
        model_path = str(shown_as(scope.job_id) / "model") if on_slurm else MODEL
        await lay_out(self._dependencies, scope, base, model_path)

    async def _train(self, scope: Scope) -> None:
        base = await base_model(scope.context, scope.job.spec.model_id)
        await self._place(scope).ensure(scope, base)
        scope.is_training = not scope.outcome

    async def _keep(self, scope: Scope) -> None:
        if scope.outcome.get("state") != "succeeded":
            return
        await keep_results(self._dependencies, scope)
        base = await base_model(scope.context, scope.job.spec.model_id)
        await register_model(self._dependencies, scope, base)

    async def _clear(self, scope: Scope) -> None:
        if scope.outcome:
            await self._remove(scope)

    async def _remove(self, scope: Scope) -> None:
        if scope.job.spec.slurm_cluster_id and not await self._slurm.has_cluster(scope):
            return  # the cluster and all that ran there is gone
        await self._place(scope).remove(scope)

    async def _remove_files(self, scope: Scope) -> None:
        if scope.job.spec.slurm_cluster_id and await self._slurm.has_cluster(scope):
            await self._slurm.forget(scope)
        await asyncio.to_thread(scope.folder.remove)

    def _place(self, scope: Scope) -> JobPod | JobOnSlurm:
        return self._slurm if scope.job.spec.slurm_cluster_id else self._pod
