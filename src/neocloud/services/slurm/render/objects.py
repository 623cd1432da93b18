"""Every Kubernetes object of a cluster except its pods: network border, configuration, keys, volumes."""

import base64

from neocloud.engines.base import KubernetesObject
from neocloud.services.slurm.render.configuration import accounting_files, configuration_files
from neocloud.services.slurm.render.view import CLUSTER_LABEL, ClusterView

CONFIGURATION = "slurm-configuration"
LOGIN_KEYS = "login-keys"
SLURM_KEY = "slurm-key"
JWT_KEY = "jwt-key"
ACCOUNTING_SECRET = "accounting"
SSH_HOST_KEY = "ssh-host-key"
CONTROLLER_STATE = "controller-state"
ACCOUNTING_DATA = "accounting-data"
NODES_SERVICE = "nodes"

CONTROLLER_STATE_GIB = 1
ACCOUNTING_DATA_GIB = 4


def namespace(name: str, cluster_name: str) -> KubernetesObject:
    labels = {CLUSTER_LABEL: cluster_name}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def network_policy(view: ClusterView) -> KubernetesObject:
    """Nodes of a cluster reach each other; other namespaces reach none of them."""
    spec = {
        "podSelector": {},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {}}]}],
    }
    return _object(view, "networking.k8s.io/v1", "NetworkPolicy", "same-namespace-only", spec=spec)


def nodes_service(view: ClusterView) -> KubernetesObject:
    """Headless: gives every pod a name where the engine resolves names through Services."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {CLUSTER_LABEL: view.name},
    }
    return _object(view, "v1", "Service", NODES_SERVICE, spec=spec)


def config_maps(view: ClusterView) -> list[KubernetesObject]:
    keys = "".join(f"{key.strip()}\n" for key in view.authorized_keys)
    return [
        _object(view, "v1", "ConfigMap", CONFIGURATION, data=configuration_files(view)),
        _object(view, "v1", "ConfigMap", LOGIN_KEYS, data={"root": keys}),
    ]


def secrets(view: ClusterView) -> list[KubernetesObject]:
    files = {
        SLURM_KEY: {"slurm.key": view.secrets.slurm_key},
        JWT_KEY: {"jwt.key": view.secrets.jwt_key},
        SSH_HOST_KEY: {"ssh_host_ed25519_key": view.secrets.ssh_host_key.encode()},
        ACCOUNTING_SECRET: {name: text.encode() for name, text in accounting_files(view).items()},
    }
    return [
        _object(view, "v1", "Secret", name, type="Opaque", data=_encoded(content))
        for name, content in files.items()
    ]


def volume_claims(view: ClusterView) -> list[KubernetesObject]:
    """The daemons' own; the shared root is a compute Filesystem, which makes its claim itself."""
    return [
        _volume_claim(view, CONTROLLER_STATE, CONTROLLER_STATE_GIB),
        _volume_claim(view, ACCOUNTING_DATA, ACCOUNTING_DATA_GIB),
    ]


def _volume_claim(view: ClusterView, name: str, gib: int) -> KubernetesObject:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{gib}Gi"}},
    }
    return _object(view, "v1", "PersistentVolumeClaim", name, spec=spec)


def _encoded(files: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def _object(view: ClusterView, api_version: str, kind: str, name: str, **body: object) -> KubernetesObject:
    labels = {CLUSTER_LABEL: view.name}
    metadata = {"name": name, "namespace": view.namespace, "labels": labels}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
