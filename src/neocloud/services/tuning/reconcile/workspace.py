"""What the recipes are told of a job: its data laid into the folder, every setting filled in."""

import asyncio
from dataclasses import replace
from typing import Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import Context, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.core.untrusted_files import UnsafePath
from neocloud.services.compute.public import Preset
from neocloud.services.inference.public import Location, ModelFolders, WeightsGone
from neocloud.services.inference.types import ModelState
from neocloud.services.tuning.public import Files
from neocloud.services.tuning.reconcile.scope import Scope
from neocloud.services.tuning.rules import hyperparameters
from neocloud.services.tuning.rules.hyperparameters import BaseSize, DataSize
from neocloud.services.tuning.rules.memory import Training, fit
from neocloud.services.tuning.rules.recipe_settings import (
    MOST_ROWS_AT_A_TIME,
    SAMPLES,
    deal_out,
    training_arguments,
)
from neocloud.services.tuning.types import Reason, model_name
from neocloud.services.tuning.work_folder import WorkFolder

LEAST_CONTEXT = 128


def model_folders(dependencies: Dependencies) -> ModelFolders:
    return dependencies.provided.get(ModelFolders)


async def base_model(context: Context, model_id: str) -> Any:
    """The whole model that training starts from."""
    row = await context.get(model_id)
    base_id = wire.resource_message(row).spec.base_model_id if row is not None else ""
    row = await context.get(base_id) if base_id else row
    if row is None or row.deleted_at is not None or row.state != ModelState.READY:
        raise Failed(Reason.MODEL_GONE, f"The model {base_id or model_id} is gone or not READY any more.")
    return wire.resource_message(row)


async def lay_out(dependencies: Dependencies, scope: Scope, base: Any, model_path: str) -> None:
    """Fill the folder for this attempt, and the scope's hyperparameters and warnings."""
    spec, folder = scope.job.spec, scope.folder
    if not await asyncio.to_thread(folder.holds, "training_file.jsonl"):
        await _place(dependencies, scope, "training_file")
    if spec.validation_file:
        await _place(dependencies, scope, "validation_file")
    try:
        size = await asyncio.to_thread(folder.measure, "training_file.jsonl")
    except (UnsafePath, FileNotFoundError) as error:  # the container of an earlier attempt put it aside
        raise RetryLater(f"the training file is laid again: {error}", delay_seconds=1.0) from error
    used, notes = settings(scope, size, base)
    scope.hyperparameters, scope.warnings = used, notes
    if folder.wanted().get("attempt") != scope.record.attempt:
        wanted = _wanted(scope, base, size, used, model_path)
        await asyncio.to_thread(_write, folder, wanted, scope)


def settings(scope: Scope, data: DataSize, base: Any) -> tuple[Any, tuple[str, ...]]:
    """The hyperparameters that are really used, and what to warn of."""
    job, shape = scope.job, require_shape(scope)
    asked, status = job.spec.hyperparameters, base.status
    used = hyperparameters.filled_in(asked, data, BaseSize(status.parameters, status.context_length))
    notes = list(hyperparameters.warnings(asked, used))
    while not asked.HasField("context_length") and used.context_length > LEAST_CONTEXT:
        if _rows_that_fit(base, used, shape):
            break
        used.context_length //= 2
        notes.append(f"Conversations are cut after {used.context_length} tokens: more does not fit.")
    dealt = deal_out(used.batch_size, _processes(scope), 1)
    if dealt.batch != used.batch_size:
        notes.append(f"batch_size {used.batch_size} was raised to {dealt.batch}, the same for all processes.")
        used.batch_size = dealt.batch
    if job.spec.model_id != base.metadata.id:
        notes.append(f"The model is an adapter; training starts from {base.metadata.name} below it.")
    return used, tuple(notes)


def require_shape(scope: Scope) -> Preset:
    if scope.shape is None:
        raise Failed(Reason.CLUSTER_UNUSABLE, "Its cluster is gone; start another job from the same files.")
    return scope.shape


def _processes(scope: Scope) -> int:
    """That train at the same time, on all nodes."""
    return max(1, scope.job.spec.nodes) * max(1, require_shape(scope).gpus)


def _rows_that_fit(base: Any, used: Any, shape: Preset) -> int:
    """Of one process at a time."""
    if shape.gpus and not shape.gpu_memory_gib:
        return 1
    training = Training(
        parameters=base.status.parameters,
        kv_bytes_per_token=base.status.kv_bytes_per_token,
        rank=used.lora_r,
        adapter_bytes_per_rank=base.status.adapter_bytes_per_rank,
        tokens_at_a_time=0,
    )
    for rows in range(MOST_ROWS_AT_A_TIME, 0, -1):
        wanted = replace(training, tokens_at_a_time=rows * used.context_length)
        if fit(
            wanted, memory_gib=shape.memory_gib, gpus=shape.gpus, gpu_memory_gib=shape.gpu_memory_gib
        ).fits:
            return rows
    return 0


def _wanted(scope: Scope, base: Any, size: DataSize, used: Any, model_path: str) -> dict[str, Any]:
    spec, shape = scope.job.spec, require_shape(scope)
    rows = _rows_that_fit(base, used, shape)
    dealt = deal_out(used.batch_size, _processes(scope), max(1, rows))
    seed = spec.seed or 42
    return {
        "attempt": scope.record.attempt,
        "name": model_name(base.metadata.name, spec.suffix, scope.job_id),
        "model": model_path,
        "model_name": base.metadata.name,
        "model_digest": base.status.digest,
        "seed": seed,
        "context": used.context_length,
        "packing": used.packing,
        "merge": spec.merge,
        "samples": SAMPLES,
        "cpus": shape.vcpu,
        "nodes": max(1, spec.nodes),
        "processes": max(1, shape.gpus),
        "arguments": training_arguments(used, dealt, size, seed=seed, parameters=base.status.parameters),
    }


async def _place(dependencies: Dependencies, scope: Scope, name: str) -> None:
    file_id = getattr(scope.job.spec, name)
    files = dependencies.provided.get(Files)
    try:
        source = await asyncio.to_thread(files.path, scope.job.metadata.parent_id, file_id)
        await asyncio.to_thread(scope.folder.place, source, f"{name}.jsonl")
    except (LookupError, FileNotFoundError) as error:
        raise Failed(Reason.FILE_MISSING, f"The {name} {file_id} was deleted before it was read.") from error


def _write(folder: WorkFolder, wanted: dict[str, Any], scope: Scope) -> None:
    folder.want(wanted)
    first = f"The job was created: {wanted['model_name']} learns from {scope.job.spec.training_file}."
    again = f"Attempt {wanted['attempt']} goes on from the newest checkpoint."
    folder.tell(scope.context.now.timestamp(), first if wanted["attempt"] == 1 else again)


def base_weights(dependencies: Dependencies, base: Any) -> Location:
    try:
        return model_folders(dependencies).locate_known(base)
    except WeightsGone as error:
        raise Failed(Reason.MODEL_GONE, f"{base.metadata.name}: {error}.") from error
