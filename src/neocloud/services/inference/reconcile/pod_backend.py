"""A ReplicaBackend: replicas as pods of this machine."""

import hashlib
import json
from collections.abc import Callable, Sequence

from neocloud.core.reconcile.reconciler import Failed
from neocloud.engines.base import Engine, EngineError, ObservedPod, PodPhase, Reference
from neocloud.engines.manifest import Pod
from neocloud.services.compute.public import preset
from neocloud.services.inference.reconcile.scope import ReplicaStatus, Scope
from neocloud.services.inference.render import (
    ModelServerView,
    ReplicaView,
    adapter_path,
    foundation,
    replica_pod,
)
from neocloud.services.inference.resources import (
    SERVER_PORT,
    DeploymentReason,
    ModelFolders,
    WeightsGone,
    embeds,
    namespace,
)
from neocloud.services.inference.rules.memory import GIB, LARGEST_RANK

REVISION_LABEL = "neocloud.dev/revision"
_ANY_IMAGE = "any"
"""Stands for the image where only the rest of a pod matters."""
_ENDED = (PodPhase.FAILED, PodPhase.SUCCEEDED)


class PodBackend:
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

    async def observe(self, scope: Scope) -> Sequence[ReplicaStatus]:
        observation = await self._engine.observe(scope.namespace)
        return [self._status(pod, scope) for pod in observation.pods]

    async def start(self, scope: Scope, names: Sequence[str]) -> None:
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

    async def stop(self, scope: Scope, names: Sequence[str]) -> None:
        await self._engine.remove([Reference("Pod", scope.namespace, name) for name in names])

    async def log(self, deployment_id: str, name: str, lines: int) -> str:
        return await last_lines(self._engine, Reference("Pod", namespace(deployment_id), name), lines)

    async def clear(self, scope: Scope) -> None:
        await self._engine.remove([Reference("Namespace", scope.namespace, scope.namespace)])

    def adapter_path(self, scope: Scope, adapter_id: str) -> str:
        return adapter_path(adapter_id)

    def _status(self, pod: ObservedPod, scope: Scope) -> ReplicaStatus:
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

    def _pod(self, scope: Scope, name: str) -> Pod:
        view = self._view(scope, name, self._image())
        return replica_pod(view, {REVISION_LABEL: self._revision(scope, name)})

    def _revision(self, scope: Scope, name: str) -> str:
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

    def _view(self, scope: Scope, name: str, image: str) -> ReplicaView:
        assert scope.model is not None
        shape = preset(scope.spec.platform, scope.spec.preset)
        weights = self._folders.locate_known(scope.model)
        return ReplicaView(
            name=name,
            namespace=scope.namespace,
            image=image,
            weights=weights.root,
            weights_path=weights.path,
            adapters=self._folders.of_deployment(scope.id) if scope.spec.max_adapters else None,
            cpus=shape.vcpu,
            memory_mib=shape.memory_mib,
            engine=server_view(scope, gpus=shape.gpus, media_domains=self._media_domains),
        )


def server_view(scope: Scope, *, gpus: int, media_domains: tuple[str, ...]) -> ModelServerView:
    assert scope.plan is not None and scope.model is not None
    return ModelServerView(
        served_name=scope.served_name,
        context_length=scope.plan.context_length,
        max_concurrency=scope.plan.max_concurrency,
        cache_gib=max(1, scope.plan.cache_bytes // GIB),
        gpus=gpus,
        max_adapters=scope.spec.max_adapters,
        adapter_rank=LARGEST_RANK,
        adapted_modules=tuple(scope.model.status.target_modules),
        tool_call_parser=scope.model.spec.tool_call_parser,
        reasoning_parser=scope.model.spec.reasoning_parser,
        embeds=embeds(scope.spec),
        media_domains=media_domains,
    )


async def last_lines(engine: Engine, pod: Reference, lines: int) -> str:
    """Return the last lines that a pod wrote, without empty ones at the end; "" without a pod or log."""
    try:
        return "\n".join((await engine.log_page(pod, tail=lines)).lines).strip()
    except EngineError:
        return ""
