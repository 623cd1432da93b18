"""Render the workloads of a Slurm cluster: a ClusterView in, manifests out. Pure.

`view` holds the input types, `configuration` Slurm's files and every object but the pods, `pods` the pods.
"""

from neocloud.engines.manifest import Manifest
from neocloud.services.slurm.render import configuration
from neocloud.services.slurm.render.configuration import configuration_version, namespace
from neocloud.services.slurm.render.pods import pods
from neocloud.services.slurm.render.topology import RESERVED_SWITCHES
from neocloud.services.slurm.render.view import (
    ACCOUNTING_POD,
    BALANCER_POD,
    BOOTS_LABEL,
    CLUSTER_LABEL,
    CONTROLLER_POD,
    CONTROLLER_PODS,
    DATABASE_CONTAINER,
    DEFAULT_PARTITION,
    ENTER_ROOT,
    LOGIN_POD,
    MAX_NODES,
    MODELS_LABEL,
    NODE_SET_LABEL,
    REST_PORT,
    ROLE_LABEL,
    SHARED_ROOT_PATH,
    SSH_PORT,
    WORKER_ROLE,
    ClusterSecrets,
    ClusterView,
    MountView,
    NodeSetView,
    PlaceView,
    SubmountView,
)

__all__ = [
    "ACCOUNTING_POD",
    "BALANCER_POD",
    "BOOTS_LABEL",
    "CLUSTER_LABEL",
    "CONTROLLER_POD",
    "CONTROLLER_PODS",
    "DATABASE_CONTAINER",
    "DEFAULT_PARTITION",
    "ENTER_ROOT",
    "SHARED_ROOT_PATH",
    "LOGIN_POD",
    "MAX_NODES",
    "NODE_SET_LABEL",
    "REST_PORT",
    "ROLE_LABEL",
    "MODELS_LABEL",
    "SSH_PORT",
    "WORKER_ROLE",
    "ClusterSecrets",
    "ClusterView",
    "MountView",
    "SubmountView",
    "NodeSetView",
    "PlaceView",
    "RESERVED_SWITCHES",
    "configuration_version",
    "foundation",
    "namespace",
    "pods",
    "render",
]


def foundation(view: ClusterView) -> list[Manifest]:
    """Return the objects that must exist before the first pod, in the order to apply them."""
    return [
        namespace(view.namespace, view.name),
        configuration.network_policy(view),
        configuration.nodes_service(view),
        *configuration.config_maps(view),
        *configuration.secrets(view),
        *configuration.volume_claims(view),
    ]


def render(view: ClusterView) -> list[Manifest]:
    """Return all objects of the cluster, in the order to apply them."""
    return [*foundation(view), *pods(view)]
