"""Estimate a job before it is created: its settings, and its duration by that of an earlier job.

The speed is that of the newest job of the project that has trained the same base on the same shape. Without
one nothing is said of the duration: speeds of other models or machines do not tell it.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core import contract, wire
from neocloud.core.readers import TransactionReader
from neocloud.core.service import Call
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.engines.base import Capabilities
from neocloud.messages.neocloud.inference.v1 import Model
from neocloud.messages.neocloud.tuning.v1 import (
    EstimateFineTuningJobRequest,
    EstimateFineTuningJobResponse,
    FineTuningJob,
    FineTuningJobSpec,
    TrainingDataSize,
)
from neocloud.services.compute.public import Preset
from neocloud.services.tuning.reconcile.workspace import memory_sentence, resolve
from neocloud.services.tuning.rules import (
    cluster_nodes,
    model_violations,
    set_shape,
    shape_of,
    shape_violations,
)
from neocloud.services.tuning.rules.hyperparameters import BYTES_PER_TOKEN, TRAINING_SHARE, DataSize
from neocloud.services.tuning.rules.methods import method_of, trains_all
from neocloud.services.tuning.types import JOB, JobState, work_folder
from neocloud.services.tuning.work_folder import WorkFolder

MOST_JOBS = 5
"""Jobs whose metrics are read, the newest first, until one tells its speed."""


@dataclass(frozen=True)
class Measured:
    job_id: str
    tokens_per_second: float
    other_seconds: float


@dataclass(frozen=True)
class _Candidate:
    """A job that is not created yet: its base, its shape, and earlier jobs like it."""

    base: Model
    shape: Preset
    earlier: Sequence[FineTuningJob]


async def estimate(call: Call, request: EstimateFineTuningJobRequest) -> EstimateFineTuningJobResponse:
    job = FineTuningJob(spec=request.spec)
    job.metadata.parent_id = request.parent_id
    inventory = await call.dependencies.engine.capabilities()
    found = await call.dependencies.store.read(lambda tx: _find(tx, call, job, inventory))
    size = DataSize(request.data.conversations, request.data.bytes, request.data.longest_bytes)
    used, warnings = resolve(job.spec, found.shape, size, found.base)
    answer = EstimateFineTuningJobResponse(
        hyperparameters=used,
        warnings=warnings,
        trained_tokens=_trained_tokens(request.data, request.spec, used.n_epochs),
        memory=memory_sentence(job.spec, found.shape, used, found.base),
    )
    measured = await asyncio.to_thread(_measure, call, found.earlier)
    if measured is not None:
        training = answer.trained_tokens / measured.tokens_per_second
        answer.measured_job_id = measured.job_id
        answer.tokens_per_second = measured.tokens_per_second
        answer.other_seconds = math.ceil(measured.other_seconds)
        answer.seconds = math.ceil(training + measured.other_seconds)
    return answer


def _find(tx: Transaction, call: Call, job: FineTuningJob, inventory: Capabilities) -> _Candidate:
    """Raises ApiError where model or shape are not those of a job that would be accepted."""
    dependencies = call.dependencies
    now, provided = dependencies.clock.now(), dependencies.provided
    reader = TransactionReader(tx, now, inventory=inventory, subject=call.subject, provided=provided)
    set_shape(job, reader)
    violations = list(shape_violations(job, reader))
    shape = None if violations else shape_of(job.spec) or cluster_nodes(job.spec, reader).shape
    violations += model_violations(job, shape, reader)
    if violations:
        raise contract.bad_request([(each.field, each.message) for each in violations])
    assert shape is not None
    base = _base(tx, job.spec.model_id)
    rows = [
        row for row in tx.list(JOB, parent_id=job.metadata.parent_id)[0] if row.state == JobState.SUCCEEDED
    ]
    jobs = [wire.message(row, FineTuningJob) for row in sorted(rows, key=_created, reverse=True)]
    alike = [
        each for each in jobs if _is_alike(each.spec, job.spec) and _base_id(tx, each) == base.metadata.id
    ]
    return _Candidate(base, shape, alike[:MOST_JOBS])


def _created(row: Resource) -> float:
    return row.created_at.timestamp()


def _base(tx: Transaction, model_id: str) -> Model:
    """Return the model that training starts from, which the rules have found there."""
    row = tx.get(model_id)
    assert row is not None
    base_id = wire.message(row, Model).spec.base_model_id
    row = tx.get(base_id) if base_id else row
    assert row is not None
    return wire.message(row, Model)


def _base_id(tx: Transaction, job: FineTuningJob) -> str:
    row = tx.get(job.spec.model_id)
    return (wire.message(row, Model).spec.base_model_id if row else "") or job.spec.model_id


def _is_alike(one: FineTuningJobSpec, other: FineTuningJobSpec) -> bool:
    """Return whether two jobs train the same on the same shape."""
    shape, wanted = (
        (
            *(each.platform, each.preset, each.slurm_cluster_id, max(1, each.nodes)),
            *(method_of(each), trains_all(each)),
        )
        for each in (one, other)
    )
    return shape == wanted


def _trained_tokens(data: TrainingDataSize, spec: FineTuningJobSpec, passes: int) -> int:
    tokens = data.tokens or data.bytes / BYTES_PER_TOKEN
    share = 1.0 if spec.validation_file else TRAINING_SHARE
    return math.ceil(tokens * share * passes)


def _measure(call: Call, jobs: Sequence[FineTuningJob]) -> Measured | None:
    """Return the speed of the first job whose metrics tell it."""
    for job in jobs:
        metrics = WorkFolder(work_folder(call.dependencies.settings.home, job.metadata.id)).metrics
        steps = [each for each in metrics if each.train_loss is not None]
        if len(steps) < 2:
            continue
        seconds, tokens = steps[-1].time - steps[0].time, steps[-1].tokens - steps[0].tokens
        if seconds <= 0 or tokens <= 0:
            continue
        whole = contract.to_datetime(job.status.finished_at) - contract.to_datetime(job.status.started_at)
        return Measured(
            job.metadata.id,
            tokens / seconds,
            max(0.0, whole.total_seconds() - job.status.trained_tokens * seconds / tokens),
        )
    return None
