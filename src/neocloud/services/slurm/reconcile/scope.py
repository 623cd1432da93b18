"""What one run over a cluster knows: the spec, what the engine shows, and what Slurm reports.

Built in every run, so that no step acts on what an earlier run believed.
"""

from dataclasses import dataclass, field
from typing import Any

from neocloud.core import contract, wire
from neocloud.core.reconcile.reconciler import Context
from neocloud.engines.base import Engine, Observation, ObservedPod, PodPhase
from neocloud.services.compute.public import preset
from neocloud.services.slurm.reconcile.keys import cluster_secrets
from neocloud.services.slurm.render import (
    ACCOUNTING_POD,
    CONTROLLER_POD,
    LOGIN_POD,
    MODELS_LABEL,
    ClusterView,
    InterfaceView,
    MountView,
    NodeSetView,
)
from neocloud.services.slurm.slurmrestd import SlurmNode
from neocloud.services.slurm.types import namespace, worker_names


@dataclass
class Scope:
    context: Context
    cluster: Any
    """The Cluster message as stored."""
    observation: Observation
    view: ClusterView | None = None
    """Set by the step that starts the pods."""
    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    """What Slurm last reported in this run, by name."""
    slurm_version: str = ""
    configuration_version: str = ""
    is_recovering: bool = False
    """A lost node or a requeued job was found: run again soon."""
    shared_root_id: str = ""
    interfaces: dict[str, InterfaceView] = field(default_factory=dict)
    """By pod name; set by the step that finds addresses."""
    mounts: tuple[MountView, ...] = ()
    """Filesystems of users; set by the step that finds them."""
    unreported: frozenset[str] = frozenset()
    """Lost workers that could not be reported, because Slurm did not answer: left to a later run."""

    @property
    def cluster_id(self) -> str:
        return self.cluster.metadata.id

    @property
    def namespace(self) -> str:
        return namespace(self.cluster_id)

    @property
    def workers(self) -> dict[str, str]:
        """The node sets of the desired workers, by the name of the worker."""
        return worker_names(self.cluster.spec)

    @property
    def pod_names(self) -> tuple[str, ...]:
        """All pods that the spec asks for."""
        return (CONTROLLER_POD, ACCOUNTING_POD, LOGIN_POD, *self.workers)

    @property
    def login_port(self) -> int:
        return self.cluster.spec.login.port or self.cluster.status.login.port

    def may_show_models(self, worker: str) -> bool:
        """Whether its pod mounts the folder for models or is to be made; one that runs without it is kept."""
        pod = self.observation.pod(worker)
        return pod is None or MODELS_LABEL in pod.labels

    def lost_workers(self) -> dict[str, str]:
        """Desired workers that ran in the last run and are gone or were restarted since; with the reason."""
        lost: dict[str, str] = {}
        for known in self.cluster.status.nodes:
            if known.name not in self.workers or not known.HasField("started_at"):
                continue
            pod = self.observation.pod(known.name)
            if pod is None or pod.phase is not PodPhase.RUNNING:
                lost[known.name] = "its pod is gone"
            elif pod.started_at and pod.started_at > contract.to_datetime(known.started_at):
                lost[known.name] = "its pod was restarted"
        return lost

    def surplus_pods(self, role_label: str, worker_role: str) -> list[ObservedPod]:
        """Worker pods that the spec no longer asks for, highest index first."""
        surplus = [
            pod
            for pod in self.observation.pods
            if pod.labels.get(role_label) == worker_role and pod.reference.name not in self.workers
        ]
        return sorted(surplus, key=lambda pod: pod.reference.name, reverse=True)


async def read_scope(context: Context, engine: Engine) -> Scope:
    cluster = wire.resource_message(context.resource)
    observation = await engine.observe(namespace(cluster.metadata.id))
    return Scope(context, cluster, observation)


async def cluster_view(
    scope: Scope, image: str, shared_root_claim: str, login_port: int, shown: str = ""
) -> ClusterView:
    """Return the view that the pods are rendered from."""
    return ClusterView(
        name=scope.cluster.metadata.name,
        namespace=scope.namespace,
        image=image,
        node_sets=tuple(_node_set_view(node_set) for node_set in scope.cluster.spec.node_sets),
        secrets=await cluster_secrets(scope.context),
        authorized_keys=tuple(key.strip() for key in scope.cluster.spec.login.ssh_public_keys),
        shared_root_claim=shared_root_claim,
        interfaces=scope.interfaces,
        mounts=scope.mounts,
        ssh_host_port=login_port,
        models_folder=shown,
        models_on=frozenset(filter(scope.may_show_models, scope.workers)) if shown else frozenset(),
    )


def _node_set_view(node_set: Any) -> NodeSetView:
    shape = preset(node_set.platform, node_set.preset)
    return NodeSetView(
        name=node_set.name,
        count=node_set.count,
        cpus=shape.vcpu,
        memory_mib=shape.memory_mib,
        gpus=shape.gpus,
        gpu_type=shape.gpu_type,
    )
