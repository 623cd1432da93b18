"""Where replicas run: the interface that pods and batch jobs share, and the choice between the two.

A backend starts, stops and observes the replicas that it is given. The reconciler decides how many there are,
how long to pause after a failure, which adapters are loaded, and the status.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from neocloud.core.service import Dependencies
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec
from neocloud.services.inference.reconcile.pod_backend import PodBackend
from neocloud.services.inference.reconcile.scope import ReplicaStatus, Scope
from neocloud.services.inference.reconcile.slurm_backend import SlurmBackend
from neocloud.services.inference.resources import ModelFolders
from neocloud.services.slurm.public import BatchJobs


class ReplicaBackend(Protocol):
    async def observe(self, scope: Scope) -> Sequence[ReplicaStatus]:
        """Return all replicas of the deployment that exist, by whatever name.

        Raises RetryLater when they cannot be listed now.
        """
        ...

    async def start(self, scope: Scope, names: Sequence[str]) -> None:
        """Start these by the present spec; replace those that run by an older one. May be repeated."""
        ...

    async def stop(self, scope: Scope, names: Sequence[str]) -> None:
        """Stop these; may be repeated. Returns when they are gone, or raises RetryLater."""
        ...

    async def log(self, deployment_id: str, name: str, lines: int) -> str:
        """Return the last lines that the replica's model server wrote; "" where there are none."""
        ...

    async def clear(self, scope: Scope) -> None:
        """Remove all that the backend made for a deployment that is being deleted."""
        ...

    def adapter_path(self, scope: Scope, adapter_id: str) -> str:
        """Return where a model server finds an adapter that was staged in the deployment's folder."""
        ...


@dataclass(frozen=True)
class ReplicaBackends:
    pods: ReplicaBackend
    slurm: ReplicaBackend | None
    """None in a control plane without the Slurm service."""

    def of(self, spec: DeploymentSpec) -> ReplicaBackend:
        """Return the backend that a deployment with this spec uses."""
        if not spec.slurm_cluster_id:
            return self.pods
        if self.slurm is None:
            raise RuntimeError("A deployment names a Slurm cluster, and the Slurm service is not loaded.")
        return self.slurm


def replica_backends(dependencies: Dependencies) -> ReplicaBackends:
    # Cached: the engine of pods gets images when the cloud starts.
    image = functools.cache(lambda: dependencies.settings.image("jail"))
    domains = dependencies.settings.media_domains
    folders, home = dependencies.provided.get(ModelFolders), dependencies.settings.home
    pods = PodBackend(dependencies.engine, folders, image, domains)
    jobs = dependencies.provided.find(BatchJobs)
    if jobs is None:
        return ReplicaBackends(pods, None)
    slurm = SlurmBackend(jobs, dependencies.store, folders, home, media_domains=domains)
    return ReplicaBackends(pods, slurm)
