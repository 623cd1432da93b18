"""Backends of replicas: their interface, the choice between the two, and pods of this machine.

A backend starts, stops and observes the replicas that it is given. The reconciler decides how many there are,
how long to pause after a failure, which adapters are loaded, and the status.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from neocloud.core.reconcile.reconciler import Failed
from neocloud.core.service import Dependencies
from neocloud.engines.base import Engine, EngineError, LogPage, ObservedPod, PodPhase, Reference
from neocloud.engines.manifest import Pod
from neocloud.messages.neocloud.inference.v1 import DeploymentSpec
from neocloud.services.compute.public import preset
from neocloud.services.inference.public import Location, ModelFolders, WeightsGone
from neocloud.services.inference.reconcile.replica_log import LogPosition, ReplicaLog
from neocloud.services.inference.reconcile.scope import DeploymentScope, ReplicaStatus, server_view
from neocloud.services.inference.reconcile.slurm_backend import SlurmBackend
from neocloud.services.inference.render import (
    MODEL_FOLDER,
    ReplicaView,
    adapter_path,
    foundation,
    replica_pod,
)
from neocloud.services.inference.types import SERVER_PORT, DeploymentReason, has_fewer_bits, namespace
from neocloud.services.slurm.types import BatchJobs

REVISION_LABEL = "neocloud.dev/revision"
_ANY_IMAGE = "any"
"""Stands for the image where only the rest of a pod matters."""
_ENDED = (PodPhase.FAILED, PodPhase.SUCCEEDED)


class ReplicaBackend(Protocol):
    async def observe(self, scope: DeploymentScope) -> Sequence[ReplicaStatus]:
        """Return all replicas of the deployment that exist, under any name.

        Raises RetryLater when they cannot be listed now.
        """
        ...

    async def start(self, scope: DeploymentScope, names: Sequence[str]) -> None:
        """Start these replicas with the present spec, and replace those that run with an older one. May be
        repeated."""
        ...

    async def stop(self, scope: DeploymentScope, names: Sequence[str]) -> None:
        """Stop these replicas. Returns when they are gone, or raises RetryLater. May be repeated."""
        ...

    async def log(self, deployment_id: str, name: str, lines: int) -> ReplicaLog:
        """Return the last lines that the replica's model server wrote."""
        ...

    async def log_after(self, deployment_id: str, position: LogPosition) -> ReplicaLog:
        """Return the whole lines that it wrote after a position; those of a later run from its start."""
        ...

    async def clear(self, scope: DeploymentScope) -> None:
        """Remove everything that the backend made for a deployment that is being deleted."""
        ...

    def adapter_path(self, scope: DeploymentScope, adapter_id: str) -> str:
        """Return the path at which a model server finds an adapter that was staged in the deployment's
        folder."""
        ...


@dataclass(frozen=True)
class ReplicaBackends:
    pods: ReplicaBackend
    slurm: ReplicaBackend | None
    """None in a control plane without the Slurm service."""

    def of(self, spec: DeploymentSpec) -> ReplicaBackend:
        """Return the backend of a deployment with this spec."""
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


class PodBackend:
    """Runs replicas as pods of this machine."""

    def __init__(
        self,
        engine: Engine,
        folders: ModelFolders,
        image: Callable[[], str],
        media_domains: tuple[str, ...] = (),
    ) -> None:
        self._media_domains = media_domains
        self._engine = engine
        self._folders = folders
        self._image = image

    async def observe(self, scope: DeploymentScope) -> Sequence[ReplicaStatus]:
        observation = await self._engine.observe(scope.namespace)
        return [self._status(pod, scope) for pod in observation.pods]

    async def start(self, scope: DeploymentScope, names: Sequence[str]) -> None:
        objects = foundation(scope.namespace, scope.deployment.metadata.name, scope.server_key)
        try:
            pods = [self._pod(scope, name) for name in names]
        except WeightsGone as error:
            assert scope.model is not None
            raise Failed(
                DeploymentReason.MODEL_NOT_READY, f"{scope.model.metadata.name}: {error}."
            ) from error
        except OSError as error:
            raise Failed(
                DeploymentReason.IMAGE_MISSING,
                f"The shared root with the model server is not built ({error}). Run: neo image build jail",
            ) from error
        await self._engine.apply([*objects, *pods])

    async def stop(self, scope: DeploymentScope, names: Sequence[str]) -> None:
        await self._engine.remove([Reference("Pod", scope.namespace, name) for name in names])

    async def log(self, deployment_id: str, name: str, lines: int) -> ReplicaLog:
        pod = await self._pod_of(deployment_id, name)
        page = await _page(self._engine, pod, tail=lines) if pod is not None else None
        if pod is None or page is None:
            return ReplicaLog()
        return ReplicaLog("\n".join(page.lines).strip(), LogPosition(name, _run_of(pod), page.next_line))

    async def log_after(self, deployment_id: str, position: LogPosition) -> ReplicaLog:
        pod = await self._pod_of(deployment_id, position.replica)
        if pod is None:
            return ReplicaLog("", position)
        run = _run_of(pod)
        page = await _page(self._engine, pod, first_line=position.offset if run == position.run else 0)
        if page is None:
            return ReplicaLog("", position)
        text = "".join(f"{line}\n" for line in page.lines)
        return ReplicaLog(text, LogPosition(position.replica, run, page.next_line))

    async def _pod_of(self, deployment_id: str, name: str) -> ObservedPod | None:
        try:
            return (await self._engine.observe(namespace(deployment_id))).pod(name)
        except EngineError:
            return None

    async def clear(self, scope: DeploymentScope) -> None:
        await self._engine.remove([Reference("Namespace", scope.namespace, scope.namespace)])

    def adapter_path(self, scope: DeploymentScope, adapter_id: str) -> str:
        return adapter_path(adapter_id)

    def _status(self, pod: ObservedPod, scope: DeploymentScope) -> ReplicaStatus:
        name = pod.reference.name
        is_desired = name in scope.desired_names and scope.plan is not None
        return ReplicaStatus(
            name=name,
            is_running=pod.phase is PodPhase.RUNNING,
            is_healthy=pod.phase is PodPhase.RUNNING and pod.ready,
            has_ended=pod.phase in _ENDED,
            is_outdated=is_desired and pod.labels.get(REVISION_LABEL) != self._revision(scope, name),
            address=f"{pod.ip}:{SERVER_PORT}" if pod.ip else "",
            started_at=pod.started_at,
            message=pod.message,
        )

    def _pod(self, scope: DeploymentScope, name: str) -> Pod:
        view = self._view(scope, name, self._image())
        return replica_pod(view, {REVISION_LABEL: self._revision(scope, name)})

    def _revision(self, scope: DeploymentScope, name: str) -> str:
        """Return a digest of the pod that the spec asks for.

        It leaves out the image: a newer shared root is for replicas that start later.
        """
        try:
            pod = replica_pod(self._view(scope, name, _ANY_IMAGE)).to_dict()
        except WeightsGone:  # no running pod has this revision; the start reports the cause
            return ""
        for container in pod["spec"]["containers"]:
            container["image"] = ""
        return hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:16]

    def _view(self, scope: DeploymentScope, name: str, image: str) -> ReplicaView:
        assert scope.model is not None
        shape = preset(scope.spec.platform, scope.spec.preset)
        weights = self._folders.locate_known(scope.model)
        if has_fewer_bits(scope.spec):
            weights = Location(self._folders.of_weights(scope.id), MODEL_FOLDER)
        return ReplicaView(
            name=name,
            namespace=scope.namespace,
            image=image,
            weights=weights.root,
            weights_path=weights.path,
            adapters=self._folders.of_deployment(scope.id) if scope.spec.max_adapters else None,
            cpus=shape.vcpu,
            memory_mib=shape.memory_mib,
            server=server_view(scope, gpus=shape.gpus, media_domains=self._media_domains),
            gpu_type=shape.gpu_type,
        )


def _run_of(pod: ObservedPod) -> str:
    """Return a text that differs from that of each other start of the pod's program."""
    started_at = pod.started_at
    return f"{int(started_at.timestamp() * 1000) if started_at else 0}-{pod.restart_count}"


async def _page(engine: Engine, pod: ObservedPod, *, first_line: int = 0, tail: int = 0) -> LogPage | None:
    """Return a page of a pod's log; None where the pod was removed in the meantime, or has none."""
    try:
        return await engine.log_page(pod.reference, first_line=first_line, tail=tail)
    except EngineError:
        return None


async def last_lines(engine: Engine, pod: Reference, lines: int) -> str:
    """Return the last lines that a pod wrote, without empty ones at the end; "" without a pod or log."""
    try:
        return "\n".join((await engine.log_page(pod, tail=lines)).lines).strip()
    except EngineError:
        return ""
