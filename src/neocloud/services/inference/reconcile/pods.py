"""Replicas as pods of this machine. A Placement."""

import hashlib
import json
from collections.abc import Callable, Sequence

from neocloud.core.reconcile.reconciler import Failed
from neocloud.engines.base import Engine, ObservedPod, PodPhase, Reference
from neocloud.engines.manifest import Pod
from neocloud.services.compute.public import preset
from neocloud.services.inference.reconcile.log_tail import last_lines
from neocloud.services.inference.reconcile.placement import Seen
from neocloud.services.inference.reconcile.scope import Scope
from neocloud.services.inference.render import (
    EngineView,
    ReplicaView,
    adapter_path,
    foundation,
    replica_pod,
)
from neocloud.services.inference.resources import (
    ENGINE_PORT,
    DeploymentReason,
    ModelFolders,
    WeightsGone,
    embeds,
    namespace,
)
from neocloud.services.inference.rules.memory import GIB
from neocloud.services.inference.rules.shape import LARGEST_RANK

REVISION_LABEL = "neocloud.dev/revision"
_ANY_IMAGE = "any"
"""Stands for the image where only the rest of a pod counts."""
_ENDED = (PodPhase.FAILED, PodPhase.SUCCEEDED)


class PodPlacement:
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

    async def look(self, scope: Scope) -> Sequence[Seen]:
        seen = await self._engine.observe(scope.namespace)
        return [self._seen(pod, scope) for pod in seen.pods]

    async def start(self, scope: Scope, names: Sequence[str]) -> None:
        objects = foundation(scope.namespace, scope.deployment.metadata.name, scope.engine_key)
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
                f"The shared root with the engine is not built ({error}). Run: neo image build jail",
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

    def _seen(self, pod: ObservedPod, scope: Scope) -> Seen:
        name = pod.reference.name
        is_wanted = name in scope.wanted_names and scope.plan is not None
        return Seen(
            name=name,
            is_running=pod.phase is PodPhase.RUNNING,
            is_healthy=pod.phase is PodPhase.RUNNING and pod.ready,
            has_ended=pod.phase in _ENDED,
            is_outdated=is_wanted and pod.labels.get(REVISION_LABEL) != self._revision(scope, name),
            address=f"{pod.ip}:{ENGINE_PORT}" if pod.ip else "",
            started_at=pod.started_at,
            message=pod.message,
        )

    def _pod(self, scope: Scope, name: str) -> Pod:
        view = self._view(scope, name, self._image())
        return replica_pod(view, {REVISION_LABEL: self._revision(scope, name)})

    def _revision(self, scope: Scope, name: str) -> str:
        """Changes with what the spec says, not with a newer shared root: that is for replicas to come."""
        try:
            pod = replica_pod(self._view(scope, name, _ANY_IMAGE)).to_dict()
        except WeightsGone:  # another revision than any: its start says why it cannot be
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
            engine=engine_view(scope, gpus=shape.gpus, media_domains=self._media_domains),
        )


def engine_view(scope: Scope, *, gpus: int, media_domains: tuple[str, ...]) -> EngineView:
    assert scope.plan is not None and scope.model is not None
    return EngineView(
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
