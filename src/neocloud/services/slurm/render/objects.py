"""Every Kubernetes object of a cluster except its pods: network border, configuration, keys, volumes."""

from neocloud.engines.manifest import ConfigMap, Namespace, NetworkPolicy, Secret, Service, VolumeClaim
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


def namespace(name: str, cluster_name: str) -> Namespace:
    return Namespace(name=name, labels={CLUSTER_LABEL: cluster_name})


def network_policy(view: ClusterView) -> NetworkPolicy:
    """Nodes of a cluster reach each other; other namespaces reach none of them."""
    return NetworkPolicy(name="same-namespace-only", namespace=view.namespace, labels=view.labels)


def nodes_service(view: ClusterView) -> Service:
    """Headless: gives every pod a name where the engine resolves names through Services."""
    return Service(
        name=NODES_SERVICE,
        namespace=view.namespace,
        labels=view.labels,
        selector={CLUSTER_LABEL: view.name},
        is_headless=True,
    )


def config_maps(view: ClusterView) -> list[ConfigMap]:
    keys = "".join(f"{key.strip()}\n" for key in view.authorized_keys)
    files = {CONFIGURATION: configuration_files(view), LOGIN_KEYS: {"root": keys}}
    return [
        ConfigMap(name=name, namespace=view.namespace, labels=view.labels, data=data)
        for name, data in files.items()
    ]


def secrets(view: ClusterView) -> list[Secret]:
    files = {
        SLURM_KEY: {"slurm.key": view.secrets.slurm_key},
        JWT_KEY: {"jwt.key": view.secrets.jwt_key},
        SSH_HOST_KEY: {"ssh_host_ed25519_key": view.secrets.ssh_host_key.encode()},
        ACCOUNTING_SECRET: {name: text.encode() for name, text in accounting_files(view).items()},
    }
    return [
        Secret(name=name, namespace=view.namespace, labels=view.labels, contents=contents)
        for name, contents in files.items()
    ]


def volume_claims(view: ClusterView) -> list[VolumeClaim]:
    """The daemons' own; the shared root is a compute Filesystem, which makes its claim itself."""
    sizes_gib = {CONTROLLER_STATE: CONTROLLER_STATE_GIB, ACCOUNTING_DATA: ACCOUNTING_DATA_GIB}
    return [
        VolumeClaim(name=name, namespace=view.namespace, labels=view.labels, storage=f"{gib}Gi")
        for name, gib in sizes_gib.items()
    ]
