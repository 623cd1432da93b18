"""Preparation of a job before it starts: recipes, base model, data, and settings for the recipes."""

import asyncio
from functools import cache
from pathlib import Path

from neocloud.core import wire
from neocloud.core.json_values import as_object
from neocloud.core.reconcile.reconciler import Context, Failed, RetryLater
from neocloud.core.service import Dependencies
from neocloud.core.training_data import recipes_folder
from neocloud.core.untrusted.files import UnsafePath
from neocloud.messages.neocloud.inference.v1 import Model
from neocloud.messages.neocloud.tuning.v1 import FineTuningJobSpec, Hyperparameters
from neocloud.services.compute.public import Preset
from neocloud.services.inference.public import Location, ModelFolders, WeightsGone
from neocloud.services.inference.types import ModelState
from neocloud.services.tuning.reconcile.record import begin_record
from neocloud.services.tuning.reconcile.scope import JobScope
from neocloud.services.tuning.rules import gate_of, hyperparameters
from neocloud.services.tuning.rules.hyperparameters import (
    MOST_ROWS_AT_A_TIME,
    REINFORCEMENT,
    SUPERVISED,
    BaseSize,
    DataSize,
    split_batch,
    training_arguments,
)
from neocloud.services.tuning.rules.lineage import DEFAULT_SEED
from neocloud.services.tuning.rules.memory import fit, training_of
from neocloud.services.tuning.rules.methods import grader_of, method_of
from neocloud.services.tuning.types import Reason, model_name

LEAST_CONTEXT = 128
SAMPLES = 16
"""How many answers of both models the report has."""
GATE_SAMPLES = 64
"""How many, where a gate decides on them."""


@cache
def code_folder() -> Path:
    """Return the folder of the recipes. Raises Failed."""
    try:
        return recipes_folder()
    except FileNotFoundError as error:
        raise Failed("RecipesMissing", str(error)) from error


async def base_model(context: Context, model_id: str) -> Model:
    """Return the whole model that training starts from."""
    row = await context.get(model_id)
    base_id = wire.message(row, Model).spec.base_model_id if row is not None else ""
    row = await context.get(base_id) if base_id else row
    if row is None or row.deleted_at is not None or row.state != ModelState.READY:
        raise Failed(Reason.MODEL_GONE, f"The model {base_id or model_id} was deleted or is not READY.")
    return wire.message(row, Model)


def base_weights(dependencies: Dependencies, base: Model) -> Location:
    try:
        return dependencies.provided.get(ModelFolders).locate_known(base)
    except WeightsGone as error:
        raise Failed(Reason.MODEL_GONE, f"{base.metadata.name}: {error}.") from error


async def prepare_attempt(dependencies: Dependencies, scope: JobScope, base: Model, model_path: str) -> None:
    """Write the settings of this attempt beside its data, begin the record of the first attempt, and fill the
    scope's hyperparameters and warnings."""
    folder = scope.folder
    try:
        size = await asyncio.to_thread(folder.measure, "training_file.jsonl")
    except (UnsafePath, FileNotFoundError) as error:  # the container of an earlier attempt removed it
        raise RetryLater(f"the training file is copied again: {error}", delay_seconds=1.0) from error
    used, warnings = resolve_hyperparameters(scope, size, base)
    scope.hyperparameters, scope.warnings = used, warnings
    if folder.settings().get("attempt") != scope.runtime.attempt:
        await begin_record(dependencies, scope, base)
        settings = _settings(scope, base, size, used, model_path)
        await asyncio.to_thread(_write_settings, scope, base, settings)


def resolve_hyperparameters(
    scope: JobScope, data: DataSize, base: Model
) -> tuple[Hyperparameters, tuple[str, ...]]:
    """Return the hyperparameters that are used, and warnings about them."""
    return resolve(scope.job.spec, require_shape(scope), data, base)


def resolve(
    spec: FineTuningJobSpec, shape: Preset, data: DataSize, base: Model
) -> tuple[Hyperparameters, tuple[str, ...]]:
    """Return the hyperparameters that a job on this shape uses, and warnings about them."""
    requested, size = spec.hyperparameters, BaseSize(base.status.parameters, base.status.context_length)
    method = method_of(spec)
    used = hyperparameters.fill_in(requested, data, size, method)
    warnings = list(hyperparameters.warnings(requested, used))
    while not requested.HasField("context_length") and used.context_length > LEAST_CONTEXT:
        if _rows_that_fit(base, used, shape, method):
            break
        used.context_length //= 2
        warnings.append(f"Conversations are cut after {used.context_length} tokens: more does not fit.")
    split = split_batch(used.batch_size, _processes(spec, shape), 1)
    if split.batch != used.batch_size:
        warnings.append(
            f"batch_size {used.batch_size} was raised to {split.batch}, the same for all processes."
        )
        used.batch_size = split.batch
    if spec.model_id != base.metadata.id:
        warnings.append(f"The model is an adapter; training starts from its base {base.metadata.name}.")
    return used, tuple(warnings)


def require_shape(scope: JobScope) -> Preset:
    if scope.shape is None:
        raise Failed(
            Reason.CLUSTER_UNUSABLE, "Its cluster was deleted; start another job from the same files."
        )
    return scope.shape


def _processes(spec: FineTuningJobSpec, shape: Preset) -> int:
    """Return the number of processes that train at the same time, on all nodes."""
    return max(1, spec.nodes) * max(1, shape.gpus)


def _rows_that_fit(base: Model, used: Hyperparameters, shape: Preset, method: str) -> int:
    """Return how many rows one process can train on at a time; 0 when it cannot train at all."""
    if shape.gpus and not shape.gpu_memory_gib:
        return 1
    most = 1 if method == REINFORCEMENT else MOST_ROWS_AT_A_TIME  # its rows have many answers each
    for rows in range(most, 0, -1):
        if fit(training_of(used, base.status, method, used.context_length, rows), shape).fits:
            return rows
    return 0


def memory_sentence(spec: FineTuningJobSpec, shape: Preset, used: Hyperparameters, base: Model) -> str:
    """Return the estimated memory of one process, as a sum; "" where that of a GPU is not known."""
    if shape.gpus and not shape.gpu_memory_gib:
        return ""
    method = method_of(spec)
    rows = max(1, _rows_that_fit(base, used, shape, method))
    split = split_batch(used.batch_size, _processes(spec, shape), rows)
    return fit(training_of(used, base.status, method, used.context_length, split.rows), shape).sentence


def _settings(
    scope: JobScope, base: Model, size: DataSize, used: Hyperparameters, model_path: str
) -> dict[str, object]:
    """Return the content of job.json, which tuning_job.py reads."""
    spec, shape = scope.job.spec, require_shape(scope)
    method = method_of(spec)
    rows = _rows_that_fit(base, used, shape, method)
    split = split_batch(used.batch_size, _processes(spec, shape), max(1, rows))
    seed, gate = spec.seed or DEFAULT_SEED, gate_of(spec)
    # A job that continues after an upgrade keeps its configuration, which the recipes on its cluster know.
    earlier = as_object(scope.folder.settings().get("arguments")) if scope.runtime.attempt > 1 else {}
    arguments = earlier or training_arguments(
        used, split, size, seed=seed, parameters=base.status.parameters, method=method
    )
    return {
        "attempt": scope.runtime.attempt,
        "name": model_name(base.metadata.name, spec.suffix, scope.job_id),
        "model": model_path,
        "model_name": base.metadata.name,
        "model_digest": base.status.digest,
        "model_license": base.spec.license,
        "seed": seed,
        "context": used.context_length,
        "packing": used.packing,
        "merge": spec.merge,
        "refuse_personal_data": spec.refuse_personal_data,
        "samples": GATE_SAMPLES if gate else SAMPLES,
        "accuracy": bool(gate and "accuracy" in gate.metrics),
        "cpus": shape.vcpu,
        "nodes": max(1, spec.nodes),
        "processes": max(1, shape.gpus),
        "arguments": arguments,
        "method": method,
        "lora": used.lora,
        **({"grader": grader_of(spec)} if spec.grader else {}),
    }


def _write_settings(scope: JobScope, base: Model, settings: dict[str, object]) -> None:
    scope.folder.write_settings(settings)
    attempt, spec = scope.runtime.attempt, scope.job.spec
    if attempt == 1:
        by = "" if method_of(spec) == SUPERVISED else f" by {method_of(spec)}"
        scope.add_event(f"The job was created: {base.metadata.name} is trained on {spec.training_file}{by}.")
    else:
        scope.add_event(f"Attempt {attempt} continues from the newest checkpoint.")
