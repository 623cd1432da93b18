"""A workload as Kubernetes objects: its namespace, its files as a Secret, one pod on its subnet. Pure.

What tenants wrote is only ever a word in a list: no shell sees it.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.engines.interface import annotation_of
from neocloud.services.ai.resources import CONTAINER, POD

WORKLOAD_LABEL = "neocloud.dev/ai-workload"
RUN_LABEL = "neocloud.dev/ai-run"
CLAIMS_ANNOTATION = "neocloud.dev/claims"
"""Claims of the pod's volumes that lie in other namespaces: {claim name: namespace}, as JSON."""
FILES_SECRET = "files"
SHM_BYTES = 64 * 1024 * 1024
GRACE_SECONDS = 10


@dataclass(frozen=True)
class InterfaceView:
    network: str
    subnet: str
    address: str
    mac: str
    security_groups: tuple[str, ...]
    public_address: str = ""


@dataclass(frozen=True)
class MountView:
    claim: Reference
    path: str
    sub_path: str = ""
    is_read_only: bool = False


@dataclass(frozen=True)
class WorkloadView:
    id: str
    run: str
    """Names the attempt; another one means another pod."""
    image: str
    command: Sequence[str]
    args: Sequence[str]
    working_dir: str
    variables: Mapping[str, str]
    ports: Sequence[tuple[int, str]]
    """Number and protocol, "TCP" or "UDP"."""
    files: Sequence[tuple[str, bytes]]
    mounts: Sequence[MountView]
    interface: InterfaceView
    vcpus: int
    memory_mib: int
    gpus: int
    shm_bytes: int
    is_restarted: bool
    """Whether the engine starts it anew when it ends."""


def workload_objects(view: WorkloadView) -> list[KubernetesObject]:
    labels = {WORKLOAD_LABEL: view.id}
    objects: list[KubernetesObject] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": view.id, "labels": labels}}
    ]
    if view.files:
        data = {
            _file(index): base64.b64encode(content).decode() for index, (_, content) in enumerate(view.files)
        }
        metadata = {"name": FILES_SECRET, "namespace": view.id, "labels": labels}
        objects.append(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
        )
    return [*objects, _pod(view)]


def _pod(view: WorkloadView) -> KubernetesObject:
    mine = view.interface
    interface = annotation_of(
        network=mine.network,
        subnet=mine.subnet,
        address=mine.address,
        mac=mine.mac,
        security_groups=mine.security_groups,
        public_address=mine.public_address,
    )
    claims = {mount.claim.name: mount.claim.namespace for mount in view.mounts}
    metadata = {
        "name": POD,
        "namespace": view.id,
        "labels": {WORKLOAD_LABEL: view.id, RUN_LABEL: view.run},
        "annotations": {**interface, CLAIMS_ANNOTATION: json.dumps(claims, sort_keys=True)},
    }
    volumes, mounts = _volumes(view)
    spec = {
        "hostname": view.id,
        "restartPolicy": "Always" if view.is_restarted else "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(view, mounts)],
        "volumes": volumes,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(view: WorkloadView, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    limits = {"cpu": str(view.vcpus), "memory": f"{view.memory_mib}Mi"}
    limits |= {"nvidia.com/gpu": str(view.gpus)} if view.gpus else {}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": view.image,
        "imagePullPolicy": "Never",
        "env": [{"name": name, "value": value} for name, value in view.variables.items()],
        "ports": [{"containerPort": number, "protocol": protocol} for number, protocol in view.ports],
        "resources": {"limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }
    container |= {"command": list(view.command)} if view.command else {}
    container |= {"args": list(view.args)} if view.args else {}
    container |= {"workingDir": view.working_dir} if view.working_dir else {}
    return container


def _volumes(view: WorkloadView) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    size = str(view.shm_bytes or SHM_BYTES)
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    names = {
        claim: f"filesystem-{index}"
        for index, claim in enumerate(dict.fromkeys(m.claim for m in view.mounts))
    }
    for claim, name in names.items():
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim.name}})
    for mount in view.mounts:
        shown: dict[str, Any] = {"name": names[mount.claim], "mountPath": mount.path}
        shown |= {"subPath": mount.sub_path} if mount.sub_path else {}
        mounts.append(shown | ({"readOnly": True} if mount.is_read_only else {}))
    if view.files:
        volumes.append({"name": "files", "secret": {"secretName": FILES_SECRET, "defaultMode": 0o444}})
    for index, (path, _) in enumerate(view.files):
        mounts.append({"name": "files", "mountPath": path, "subPath": _file(index), "readOnly": True})
    return volumes, mounts


def _file(index: int) -> str:
    return f"file-{index}"
