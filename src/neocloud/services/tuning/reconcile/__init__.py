"""A fine-tuning job: stage the data, train in a pod or a Slurm job, register the model.

Progress is in the job's folder, so a run may be repeated at any moment and a killed pod continues from its
newest checkpoint; an attempt that has left an outcome is never run again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from neocloud.core.evaluation_gate import decide
from neocloud.core.reconcile.reconciler import Context, Failed, Step
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.inference.v1 import Model, ModelSpec
from neocloud.messages.neocloud.tuning.v1 import FineTuningJob
from neocloud.services.compute.public import wait_for_capacity, wait_for_host
from neocloud.services.inference.public import ModelFolders
from neocloud.services.inference.types import MODEL as MODEL_KIND
from neocloud.services.tuning.reconcile.backends import PodBackend, SlurmBackend
from neocloud.services.tuning.reconcile.data import DataStager
from neocloud.services.tuning.reconcile.output import OutputWriter
from neocloud.services.tuning.reconcile.record import finish_record
from neocloud.services.tuning.reconcile.scope import JobScope, job_status, read_scope
from neocloud.services.tuning.reconcile.workspace import base_model, prepare_attempt
from neocloud.services.tuning.render import JOB_LABEL, MODEL, mounted_path
from neocloud.services.tuning.rules import gate_of
from neocloud.services.tuning.rules.methods import makes_whole_model
from neocloud.services.tuning.rules.outcome import Success
from neocloud.services.tuning.types import (
    JOB,
    RESULT_PURPOSE,
    Desired,
    Files,
    Reason,
    model_name,
    result_file_id,
)
from neocloud.services.tuning.work_folder import BadResult

Result = TypeVar("Result")
RESULTS = {"step_metrics.csv": "metrics.csv", "evaluation.json": "report.json"}
"""The names of result files, with the names in the job's folder; the evaluation comes last."""


class Backend(Protocol):
    """Runs the training of a job."""

    async def ensure(self, scope: JobScope, base: Model) -> None:
        """Return while the job trains and once the attempt has ended; raise RetryLater until it trains."""
        ...

    async def stop(self, scope: JobScope) -> None:
        """Request a checkpoint; return once the workload has ended."""
        ...

    async def remove(self, scope: JobScope) -> None:
        """Remove the workload; the job's files stay."""
        ...


class FineTuningJobReconciler:
    kind = JOB
    status = staticmethod(job_status)

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._pod = PodBackend(dependencies)
        self._slurm = SlurmBackend(dependencies)
        self._data = DataStager(dependencies)
        self._output = OutputWriter(dependencies)

    async def scope(self, context: Context) -> JobScope:
        return await read_scope(context, self._dependencies)

    def steps(self, scope: JobScope) -> Sequence[Step[JobScope]]:
        if scope.has_ended:
            return (Step("Remove workloads", self._remove),)
        if scope.runtime.desired is Desired.PAUSE:
            backend = self._backend(scope)
            return (Step("Stop after a checkpoint", backend.stop), Step("Remove workloads", backend.remove))
        return (
            Step("Stage the data", self._stage),
            Step("Wait for capacity", self._wait),
            Step("Train", self._train),
            Step("Write checkpoints", self._output.write_checkpoint),
            Step("Register the model", self._register),
            Step("Write the output", self._output.write_model),
            Step("Remove workloads", self._remove_if_ended),
        )

    def delete_steps(self, scope: JobScope) -> Sequence[Step[JobScope]]:
        return (Step("Remove workloads", self._remove), Step("Remove files", self._remove_files))

    async def _stage(self, scope: JobScope) -> None:
        if scope.outcome:
            return
        base = await base_model(scope.context, scope.job.spec.model_id)
        on_slurm = scope.job.spec.slurm_cluster_id
        model_path = str(mounted_path(scope.job_id) / "model") if on_slurm else MODEL
        await self._data.stage(scope)
        await prepare_attempt(self._dependencies, scope, base, model_path)

    async def _wait(self, scope: JobScope) -> None:
        if not _is_registered(scope):
            await wait_for_capacity(scope.context)
        if not scope.outcome and not scope.observation.pods and not scope.job.spec.slurm_cluster_id:
            await wait_for_host(scope.context)

    async def _train(self, scope: JobScope) -> None:
        if _is_registered(scope):
            return
        base = await base_model(scope.context, scope.job.spec.model_id)
        await self._backend(scope).ensure(scope, base)
        scope.is_training = not scope.outcome

    async def _register(self, scope: JobScope) -> None:
        if not isinstance(scope.outcome, Success):
            return
        if _is_registered(scope):
            scope.model_id, scope.model_name = (
                scope.job.status.fine_tuned_model_id,
                scope.job.status.fine_tuned_model,
            )
            return
        await add_result_files(self._dependencies, scope)
        base = await base_model(scope.context, scope.job.spec.model_id)
        await decide_on_model(scope)
        await register_model(self._dependencies, scope, base)

    async def _remove_if_ended(self, scope: JobScope) -> None:
        if scope.outcome:
            await self._remove(scope)

    async def _remove(self, scope: JobScope) -> None:
        self._data.cancel(scope.job_id)
        self._output.cancel(scope.job_id)
        if scope.job.spec.slurm_cluster_id and not await self._slurm.has_cluster(scope):
            return  # the cluster was deleted with all that ran there
        await self._backend(scope).remove(scope)

    async def _remove_files(self, scope: JobScope) -> None:
        if scope.job.spec.slurm_cluster_id and await self._slurm.has_cluster(scope):
            await self._slurm.remove_files(scope)
        await asyncio.to_thread(scope.folder.remove)

    def _backend(self, scope: JobScope) -> Backend:
        return self._slurm if scope.job.spec.slurm_cluster_id else self._pod


def _is_registered(scope: JobScope) -> bool:
    """Return whether the new model exists, and only its copy in a bucket is missing."""
    return isinstance(scope.outcome, Success) and bool(scope.job.status.fine_tuned_model_id)


async def add_result_files(dependencies: Dependencies, scope: JobScope) -> None:
    """Add the result files to the project's files; may be repeated."""
    files, file_ids = dependencies.provided.get(Files), list[str]()
    for name, source in RESULTS.items():
        file_id = result_file_id(scope.job_id, name)
        file_ids.append(await _read_result(partial(_add_file, files, scope, source, name, file_id)))
    scope.result_files = tuple(file_ids)


async def decide_on_model(scope: JobScope) -> None:
    """Set the verdict of the job's gate on its evaluation, which fails where it cannot be read."""
    gate = gate_of(scope.job.spec)
    if gate is not None:
        scope.verdict = decide(await asyncio.to_thread(scope.folder.report), gate)


async def register_model(dependencies: Dependencies, scope: JobScope, base: Model) -> None:
    """Create the model that the job made; may be repeated. The model stays when the job is deleted."""
    project_id = scope.job.metadata.parent_id
    target = dependencies.provided.get(ModelFolders).of_project(project_id) / scope.job_id
    await _read_result(lambda: scope.folder.copy_result(target))
    name = model_name(base.metadata.name, scope.job.spec.suffix, scope.job_id)
    is_withheld = scope.verdict is not None and not scope.verdict.passed
    spec = _model_spec(scope.job, base, target)
    spec.withheld_by = scope.job_id if is_withheld else ""
    found = await scope.context.find(MODEL_KIND, project_id, name)
    if found is None or found.owner_id == scope.job_id:
        labels = {JOB_LABEL: scope.job_id}
        model = await scope.context.ensure_child(
            MODEL_KIND, name=name, parent_id=project_id, spec=spec, labels=labels
        )
        await dependencies.store.write(lambda tx: _drop_owner(tx, model))
        found = model
    if ModelSpec.FromString(found.spec).source.folder == str(target):
        await finish_record(dependencies, scope, base, found.id)
    scope.model_id, scope.model_name = found.id, found.name
    if not scope.job.status.fine_tuned_model_id:
        scope.add_event(f"New fine-tuned model created: {name}.")
        if scope.verdict is not None and scope.verdict.passed:
            scope.add_event("It passed the gate.")
        elif scope.verdict is not None:
            why = "; ".join(scope.verdict.failures)
            scope.add_event(f"It failed the gate, so it is kept and not served: {why}.", "warn")


def _model_spec(job: FineTuningJob, base: Model, folder: Path) -> ModelSpec:
    spec = ModelSpec(
        license=base.spec.license,
        description=f"Fine-tuned from {base.metadata.name} by {job.metadata.id}.",
        tool_call_parser=base.spec.tool_call_parser,
        reasoning_parser=base.spec.reasoning_parser,
    )
    spec.source.folder = str(folder)
    if not makes_whole_model(job.spec):
        spec.base_model_id = base.metadata.id
    return spec


def _drop_owner(tx: Transaction, model: Resource) -> None:
    """Make the model independent of its job."""
    row = tx.get(model.id)
    owner = tx.get(row.owner_id) if row is not None and row.owner_id else None
    if row is not None and owner is not None and owner.kind == JOB:
        tx.update(replace(row, owner_id=""))


def _add_file(files: Files, scope: JobScope, source: str, name: str, file_id: str) -> str:
    with scope.folder.result_file(source) as path:
        return files.add(scope.job.metadata.parent_id, path, RESULT_PURPOSE, name, file_id)


async def _read_result(read: Callable[[], Result]) -> Result:
    """Run in a thread, and fail the job when its container left a link or a device as a result."""
    try:
        return await asyncio.to_thread(read)
    except BadResult as error:
        raise Failed(Reason.BAD_RESULT, f"The job's result was refused: {error}.") from error


def reconcilers(dependencies: Dependencies) -> Sequence[FineTuningJobReconciler]:
    return (FineTuningJobReconciler(dependencies),)
