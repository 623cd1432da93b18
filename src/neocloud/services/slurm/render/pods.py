"""The pods of a cluster: controller, accounting, login nodes, workers.

All run one image; the first argument says the role, and the image's entrypoint does the rest. Workers and
login nodes may mount (SYS_ADMIN) because they lay private /proc, /dev and /tmp over the shared root; the
entrypoint takes that right away again before a user's first process starts.
"""

import json
from typing import Any

from neocloud.engines.base import KubernetesObject
from neocloud.engines.interface import annotation_of
from neocloud.services.slurm.render import objects
from neocloud.services.slurm.render.configuration import node_conf
from neocloud.services.slurm.render.view import (
    ACCOUNTING_POD,
    CLUSTER_LABEL,
    CONTROLLER_POD,
    JAIL_PATH,
    NODE_SET_LABEL,
    REST_PORT,
    ROLE_LABEL,
    SHOWN_LABEL,
    SSH_PORT,
    WORKER_ROLE,
    ClusterView,
    NodeSetView,
)
from neocloud.services.slurm.resources import SHOWN_FEATURE, SHOWN_PATH

CLAIMS_ANNOTATION = "neocloud.dev/claims"
"""Claims of the pod's volumes that lie in other namespaces: {claim name: namespace}, as JSON."""

SLURMCTLD_PORT = 6817
SLURMD_PORT = 6818
SLURMDBD_PORT = 6819
DATABASE_PORT = 3306

SECRETS = "/etc/neocloud/secrets"
CONFIGURATION = "/etc/neocloud/slurm"
LOGIN_KEYS = "/etc/neocloud/login-keys"
FILESYSTEMS = "/run/neocloud/filesystems"
"""Where the image's mount-jail finds filesystem 0, 1, ...; NODE_FILESYSTEMS lists their places in order. The
engine does not mount them below the jail: users own the folders there, and a link would lead out of it."""

MEMORY_FOR_DAEMONS_MIB = 256
"""Added to a worker's limit, so that jobs may use all the memory the preset promises."""

# Three volumes of a worker and a login node live in memory, as on any Linux machine.
TMP_SHARE, SHM_SHARE = 0.25, 0.5
LOGIN_TMP_MIB, LOGIN_SHM_MIB = 1024, 256


def pods(view: ClusterView) -> list[KubernetesObject]:
    return [
        accounting_pod(view),
        controller_pod(view),
        *(login_pod(view, index) for index in range(view.login_count)),
        *(worker_pod(view, node_set, name) for node_set in view.node_sets for name in node_set.pod_names()),
    ]


def accounting_pod(view: ClusterView) -> KubernetesObject:
    mounts = [_mount("accounting-secret", f"{SECRETS}/accounting", read_only=True)]
    database = _container(view, "database", DATABASE_PORT) | {
        "volumeMounts": [*mounts, _mount("data", "/var/lib/mysql")],
    }
    # It listens inside the pod only, where no probe reaches; slurmdbd is ready when it has its database.
    del database["readinessProbe"]
    slurmdbd = _container(view, "accounting", SLURMDBD_PORT) | {
        "volumeMounts": [*mounts, *_key_mounts("slurm-key", "jwt-key")],
    }
    volumes = [
        *_secret_volumes("slurm-key", "jwt-key"),
        _secret_volume("accounting-secret", objects.ACCOUNTING_SECRET),
        _claim_volume("data", objects.ACCOUNTING_DATA),
    ]
    return _pod(view, ACCOUNTING_POD, "accounting", [database, slurmdbd], volumes)


def controller_pod(view: ClusterView) -> KubernetesObject:
    mounts = [
        _mount("configuration", CONFIGURATION, read_only=True),
        _mount("shared-root", JAIL_PATH, read_only=True),
        *_key_mounts("slurm-key", "jwt-key"),
    ]
    slurmctld = _container(view, "controller", SLURMCTLD_PORT) | {
        "volumeMounts": [*mounts, _mount("state", "/var/lib/slurm")],
    }
    slurmrestd = _container(view, "rest", REST_PORT) | {"volumeMounts": mounts[:2]}
    volumes = [
        _config_volume("configuration", objects.CONFIGURATION),
        _claim_volume("shared-root", view.shared_root_claim),
        _claim_volume("state", objects.CONTROLLER_STATE),
        *_secret_volumes("slurm-key", "jwt-key"),
    ]
    return _pod(view, CONTROLLER_POD, "controller", [slurmctld, slurmrestd], volumes)


def login_pod(view: ClusterView, index: int) -> KubernetesObject:
    container = _container(view, "login", SSH_PORT)
    if view.ssh_host_port is not None:
        container["ports"][0] |= {
            "hostIP": "127.0.0.1",
            "hostPort": view.ssh_host_port + index,
        }
    if view.mounts:
        container["env"] = _filesystem_variables(view)
    container |= {
        "securityContext": {"capabilities": {"add": ["SYS_ADMIN", "AUDIT_WRITE", "NET_RAW"]}},
        "volumeMounts": [
            *_node_mounts(view),
            _mount("login-keys", LOGIN_KEYS, read_only=True),
            _mount("ssh-host-key", f"{SECRETS}/ssh-host-key", read_only=True),
        ],
    }
    volumes = [
        *_node_volumes(view, LOGIN_TMP_MIB, LOGIN_SHM_MIB),
        _config_volume("login-keys", objects.LOGIN_KEYS),
        _secret_volume("ssh-host-key", objects.SSH_HOST_KEY),
    ]
    return _pod(view, view.login_names()[index], "login", [container], volumes)


def worker_pod(view: ClusterView, node_set: NodeSetView, name: str) -> KubernetesObject:
    memory = node_set.memory_mib
    limits = {"cpu": str(node_set.cpus), "memory": f"{memory + MEMORY_FOR_DAEMONS_MIB}Mi"}
    if node_set.gpus:
        limits["nvidia.com/gpu"] = str(node_set.gpus)
    shows = name in view.shown_on
    container = _container(view, "worker", SLURMD_PORT) | {
        "env": [
            {"name": "NODE_CONF", "value": node_conf(node_set, *([SHOWN_FEATURE] if shows else []))},
            {"name": "NODE_GPUS", "value": str(node_set.gpus)},
            *_filesystem_variables(view, *([SHOWN_PATH] if shows else [])),
        ],
        "resources": {"limits": limits},
        "securityContext": {"capabilities": {"add": ["SYS_ADMIN", "NET_RAW"]}},
        "volumeMounts": _node_mounts(view),
    }
    volumes = _node_volumes(view, int(memory * TMP_SHARE), int(memory * SHM_SHARE))
    pod = _pod(view, name, WORKER_ROLE, [container], volumes)
    pod["metadata"]["labels"][NODE_SET_LABEL] = node_set.name
    if shows:
        _show_folder(view, pod)
    return pod


def _show_folder(view: ClusterView, pod: KubernetesObject) -> None:
    """As one more filesystem, the last, that mount-jail lays into the shared root."""
    pod["metadata"]["labels"][SHOWN_LABEL] = "true"
    volume = {"name": "shown", "hostPath": {"path": view.shown_folder, "type": "Directory"}}
    pod["spec"]["volumes"].append(volume)
    mount = _mount("shown", f"{FILESYSTEMS}/{len(view.mounts)}", read_only=True)
    pod["spec"]["containers"][0]["volumeMounts"].append(mount)


def _pod(
    view: ClusterView,
    name: str,
    role: str,
    containers: list[dict[str, Any]],
    volumes: list[dict[str, Any]],
) -> KubernetesObject:
    metadata = {
        "name": name,
        "namespace": view.namespace,
        "labels": {CLUSTER_LABEL: view.name, ROLE_LABEL: role},
    }
    annotations = _annotations(view, name, volumes)
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "hostUsers": False,  # a user namespace, where the engine can make one
            "hostname": name,
            "subdomain": objects.NODES_SERVICE,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": containers,
            "volumes": volumes,
        },
    }


def _annotations(view: ClusterView, name: str, volumes: list[dict[str, Any]]) -> dict[str, str]:
    """Where the pod is on a subnet, and where those of its volumes are that lie elsewhere."""
    found: dict[str, str] = {}
    if name in view.interfaces:
        found |= annotation_of(**vars(view.interfaces[name]))
    used = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in volumes}
    foreign = {mount.claim.name: mount.claim.namespace for mount in view.mounts if mount.claim.name in used}
    if foreign:
        found[CLAIMS_ANNOTATION] = json.dumps(foreign, sort_keys=True)
    return found


def _container(view: ClusterView, role: str, port: int) -> dict[str, Any]:
    """Roles and containers have the same names; a role is ready when its port answers."""
    return {
        "name": role,
        "image": view.image,
        "imagePullPolicy": "Never",
        "args": [role],
        "ports": [{"containerPort": port}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
    }


def _filesystem_variables(view: ClusterView, *more: str) -> list[dict[str, Any]]:
    paths = " ".join((*(mount.path for mount in view.mounts), *more))
    return [{"name": "NODE_FILESYSTEMS", "value": paths}] if paths else []


def _node_mounts(view: ClusterView) -> list[dict[str, Any]]:
    return [
        _mount("shared-root", JAIL_PATH),
        _mount("tmp", "/tmp"),
        _mount("shm", "/dev/shm"),
        *(_mount(f"filesystem-{index}", f"{FILESYSTEMS}/{index}") for index in range(len(view.mounts))),
        *_key_mounts("slurm-key"),
    ]


def _node_volumes(view: ClusterView, tmp_mib: int, shm_mib: int) -> list[dict[str, Any]]:
    return [
        _claim_volume("shared-root", view.shared_root_claim),
        _memory_volume("tmp", tmp_mib),
        _memory_volume("shm", shm_mib),
        *(_claim_volume(f"filesystem-{index}", each.claim.name) for index, each in enumerate(view.mounts)),
        *_secret_volumes("slurm-key"),
    ]


def _key_mounts(*names: str) -> list[dict[str, Any]]:
    return [_mount(name, f"{SECRETS}/{name}", read_only=True) for name in names]


def _secret_volumes(*names: str) -> list[dict[str, Any]]:
    return [_secret_volume(name, name) for name in names]


def _mount(name: str, path: str, *, read_only: bool = False) -> dict[str, Any]:
    mount: dict[str, Any] = {"name": name, "mountPath": path}
    return mount | {"readOnly": True} if read_only else mount


def _secret_volume(name: str, secret: str) -> dict[str, Any]:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o400}}


def _config_volume(name: str, config_map: str) -> dict[str, Any]:
    return {"name": name, "configMap": {"name": config_map}}


def _claim_volume(name: str, claim: str) -> dict[str, Any]:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def _memory_volume(name: str, mib: int) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{mib}Mi"}}
