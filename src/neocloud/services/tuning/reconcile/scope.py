"""What one run over a job knows: the spec, its folder, what the engine shows. Built in every run."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import Context
from neocloud.core.service import Dependencies
from neocloud.engines.base import Observation
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.compute.public import Preset
from neocloud.services.tuning.rules.job import shape_of
from neocloud.services.tuning.rules.place import nodes_of
from neocloud.services.tuning.runtime_state import JobRecord, Wish, read_record
from neocloud.services.tuning.types import State, StateEnum, namespace, work_folder
from neocloud.services.tuning.work_folder import WorkFolder


@dataclass
class Scope:
    context: Context
    job: Any
    record: JobRecord
    folder: WorkFolder
    observation: Observation
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """How this attempt ended; empty while it has not."""
    shape: Preset | None = None
    """Of what it runs on: its pod, or a node of its cluster; None when the cluster is gone."""
    is_training: bool = False
    is_queued: bool = False
    """By Slurm, which has no nodes for it now."""
    hyperparameters: Any = None
    warnings: tuple[str, ...] | None = None
    model_id: str = ""
    model_name: str = ""
    result_files: tuple[str, ...] = ()

    @property
    def job_id(self) -> str:
        return self.job.metadata.id

    @property
    def state(self) -> State:
        """As it was when the run began."""
        return State(StateEnum.Name(self.job.status.state))

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do but to remove its workloads."""
        if self.record.wish is Wish.CANCEL:
            return True
        is_final = self.state in (State.SUCCEEDED, State.FAILED)
        return self.record.wish is Wish.RUN and is_final

    @property
    def last_step(self) -> int:
        return self.folder.metrics[-1]["step"] if self.folder.metrics else 0


async def read_scope(context: Context, dependencies: Dependencies) -> Scope:
    job = wire.resource_message(context.resource)
    job_id = job.metadata.id
    record = await dependencies.store.read(lambda tx: read_record(tx, job_id))
    folder = WorkFolder(work_folder(dependencies.settings.home, job_id))
    observation = await dependencies.engine.observe(namespace(job_id))
    outcome = await asyncio.to_thread(folder.outcome, record.attempt)
    await asyncio.to_thread(lambda: folder.metrics)
    shape = shape_of(job.spec)
    if job.spec.slurm_cluster_id:
        cluster = await context.get(job.spec.slurm_cluster_id)
        shape = nodes_of(ClusterSpec.FromString(cluster.spec)).shape if cluster is not None else None
    return Scope(context, job, record, folder, observation, outcome, shape)
