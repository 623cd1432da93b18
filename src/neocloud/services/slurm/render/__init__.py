"""Which workloads a Slurm cluster needs: a ClusterView in, manifests out.

Pure: no store, no engine, no clock, no randomness. `view` holds the input types, `configuration` Slurm's
files, `objects` everything that is not a pod, `pods` the pods.
"""

from neocloud.engines.manifest import Manifest
from neocloud.services.slurm.render import objects
from neocloud.services.slurm.render.configuration import configuration_version
from neocloud.services.slurm.render.objects import namespace
from neocloud.services.slurm.render.pods import pods
from neocloud.services.slurm.render.view import (
    ACCOUNTING_POD,
    CLUSTER_LABEL,
    CONTROLLER_POD,
    DEFAULT_PARTITION,
    ENTER_ROOT,
    LOGIN_POD,
    MODELS_LABEL,
    NODE_SET_LABEL,
    REST_PORT,
    ROLE_LABEL,
    SHARED_ROOT_PATH,
    SSH_PORT,
    WORKER_ROLE,
    ClusterSecrets,
    ClusterView,
    InterfaceView,
    MountView,
    NodeSetView,
)

__all__ = [
    "ACCOUNTING_POD",
    "CLUSTER_LABEL",
    "CONTROLLER_POD",
    "DEFAULT_PARTITION",
    "ENTER_ROOT",
    "SHARED_ROOT_PATH",
    "LOGIN_POD",
    "NODE_SET_LABEL",
    "REST_PORT",
    "ROLE_LABEL",
    "MODELS_LABEL",
    "SSH_PORT",
    "WORKER_ROLE",
    "ClusterSecrets",
    "ClusterView",
    "InterfaceView",
    "MountView",
    "NodeSetView",
    "configuration_version",
    "foundation",
    "namespace",
    "pods",
    "render",
]


def foundation(view: ClusterView) -> list[Manifest]:
    """Everything that must exist before the first pod, in the order to apply it."""
    return [
        namespace(view.namespace, view.name),
        objects.network_policy(view),
        objects.nodes_service(view),
        *objects.config_maps(view),
        *objects.secrets(view),
        *objects.volume_claims(view),
    ]


def render(view: ClusterView) -> list[Manifest]:
    """All objects of the cluster, in the order to apply them."""
    return [*foundation(view), *pods(view)]
