"""A machine as Kubernetes objects: its namespace, its wish as a Secret, and the pod whose program is QEMU.

What the guest is told lies in the Secret, so that telling it something new makes no other pod.
"""

import base64
import json
from dataclasses import dataclass
from typing import Any

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.engines.interface import annotation_of
from neocloud.services.compute.resources.instance import BOOT_DEVICE, POD_CONTAINER

INSTANCE_LABEL = "neocloud.dev/instance"
CLAIMS_ANNOTATION = "neocloud.dev/claims"
"""Claims of the pod's volumes that lie in other namespaces: {claim name: namespace}, as JSON."""
MACHINE_SECRET, MACHINE_FOLDER, MACHINE_FILE = "machine", "/etc/neocloud/machine", "machine.json"
IDENTITY_SECRET, IDENTITY_FOLDER, TOKEN_FILE = "identity", "/etc/neocloud/identity", "token.json"
DISK_FILE = "disk.qcow2"
KVM = "kvm"

GRACE_SECONDS = 60
"""How long a guest may take to shut down before it is switched off."""
LAUNCHER_CAPABILITIES = (
    "NET_ADMIN",  # wires the pod's interface to the guest's
    "NET_BIND_SERVICE",  # names and metadata at ports below 1024
    *("CHOWN", "DAC_OVERRIDE", "FOWNER"),  # gives QEMU its disks
    *("SETUID", "SETGID", "SETPCAP", "KILL"),  # runs QEMU as another user without any of these
)
FILESYSTEM_CAPABILITIES = ("SYS_CHROOT", "FSETID", "SETFCAP")
"""For virtiofsd, which serves files with owners, each to its own folder."""
MEMORY_FOR_QEMU_MIB = 512
"""Added to the guest's memory: QEMU itself, and under emulation the code it has translated."""


@dataclass(frozen=True)
class DiskView:
    id: str
    device_id: str
    size_bytes: int
    is_read_only: bool = False


@dataclass(frozen=True)
class SharedView:
    """An attached filesystem."""

    claim: Reference
    tag: str
    is_read_only: bool = False


@dataclass(frozen=True)
class InterfaceView:
    network: str
    subnet: str
    address: str
    prefix_length: int
    gateway: str
    mac: str
    domain: str
    security_groups: tuple[str, ...] = ()
    public_address: str = ""
    name: str = "eth0"


@dataclass(frozen=True)
class GpuView:
    pci_address: str
    iommu_group: str


@dataclass(frozen=True)
class MachineView:
    id: str
    name: str
    parent_id: str
    region: str
    image: str
    vcpus: int
    memory_mib: int
    acceleration: str
    restart_policy: str
    hostname: str
    interface: InterfaceView
    disks: tuple[DiskView, ...]
    """The boot disk first."""
    filesystems: tuple[SharedView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    user_data: str = ""
    has_identity: bool = False


def machine_objects(view: MachineView) -> list[KubernetesObject]:
    """All but the pod."""
    labels = {INSTANCE_LABEL: view.id}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": view.id, "labels": labels}}
    wish = json.dumps(_wish(view), indent=1, sort_keys=True)
    return [namespace, _secret(view.id, MACHINE_SECRET, {MACHINE_FILE: wish})]


def identity_secret(instance_id: str, token: str, expires_at: str) -> KubernetesObject:
    """What the machine's metadata service hands to programs in the guest."""
    content = json.dumps({"access_token": token, "expires_at": expires_at, "token_type": "Bearer"})
    return _secret(instance_id, IDENTITY_SECRET, {TOKEN_FILE: content})


def machine_pod(view: MachineView) -> KubernetesObject:
    metadata = {
        "name": view.id,
        "namespace": view.id,
        "labels": {INSTANCE_LABEL: view.id},
        "annotations": pod_annotations(view),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod_spec(view)}


def pod_annotations(view: MachineView) -> dict[str, str]:
    mine = view.interface
    interface = annotation_of(
        network=mine.network,
        subnet=mine.subnet,
        address=mine.address,
        mac=mine.mac,
        security_groups=mine.security_groups,
        public_address=mine.public_address,
    )
    claims = {disk.id: disk.id for disk in view.disks}
    claims |= {shared.claim.name: shared.claim.namespace for shared in view.filesystems}
    return {**interface, CLAIMS_ANNOTATION: json.dumps(claims, sort_keys=True)}


def _wish(view: MachineView) -> dict[str, Any]:
    mine = view.interface
    return {
        "id": view.id,
        "name": view.name,
        "parent_id": view.parent_id,
        "region": view.region,
        "vcpus": view.vcpus,
        "memory_mib": view.memory_mib,
        "acceleration": view.acceleration,
        "disks": [
            {
                "id": disk.id,
                "path": f"{_disk_folder(index)}/{DISK_FILE}",
                "size_bytes": disk.size_bytes,
                "read_only": disk.is_read_only,
                "device_id": disk.device_id,
                "is_boot": disk.device_id == BOOT_DEVICE,
            }
            for index, disk in enumerate(view.disks)
        ],
        "filesystems": [
            {"tag": shared.tag, "path": _filesystem_folder(index), "read_only": shared.is_read_only}
            for index, shared in enumerate(view.filesystems)
        ],
        "interface": {
            "name": mine.name,
            "address": mine.address,
            "prefix_length": mine.prefix_length,
            "gateway": mine.gateway,
            "mac": mine.mac,
            "domain": mine.domain,
            "nameservers": [],
        },
        "hostname": view.hostname,
        "user_data": view.user_data,
        "gpus": [gpu.pci_address for gpu in view.gpus],
    }


def _pod_spec(view: MachineView) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(name: str, path: str, source: dict[str, Any], *, is_read_only: bool = False) -> None:
        volumes.append({"name": name} | source)
        mounts.append({"name": name, "mountPath": path} | ({"readOnly": True} if is_read_only else {}))

    add("machine", MACHINE_FOLDER, _secret_source(MACHINE_SECRET), is_read_only=True)
    if view.has_identity:
        add("identity", IDENTITY_FOLDER, _secret_source(IDENTITY_SECRET), is_read_only=True)
    for index, disk in enumerate(view.disks):
        add(f"disk-{index}", _disk_folder(index), _claim(disk.id), is_read_only=disk.is_read_only)
    for index, shared in enumerate(view.filesystems):
        add(
            f"filesystem-{index}",
            _filesystem_folder(index),
            _claim(shared.claim.name),
            is_read_only=shared.is_read_only,
        )
    for name, device in _devices(view):
        add(name, device, {"hostPath": {"path": device, "type": "CharDevice"}})
    serving = FILESYSTEM_CAPABILITIES if view.filesystems else ()
    container = {
        "name": POD_CONTAINER,
        "image": view.image,
        "imagePullPolicy": "Never",
        "resources": {
            "limits": {"cpu": str(view.vcpus), "memory": f"{view.memory_mib + MEMORY_FOR_QEMU_MIB}Mi"}
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": [*LAUNCHER_CAPABILITIES, *serving]},
        },
        "volumeMounts": mounts,
    }
    return {
        "hostname": view.hostname,
        "restartPolicy": view.restart_policy,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": volumes,
    }


def _devices(view: MachineView) -> list[tuple[str, str]]:
    found = [("tun", "/dev/net/tun")]
    if view.acceleration == KVM:
        found.append(("kvm", "/dev/kvm"))
    if view.gpus:
        found.append(("vfio", "/dev/vfio/vfio"))
        groups = sorted({gpu.iommu_group for gpu in view.gpus})
        found.extend((f"vfio-{group}", f"/dev/vfio/{group}") for group in groups)
    return found


def _disk_folder(index: int) -> str:
    return f"/disks/{index}"


def _filesystem_folder(index: int) -> str:
    return f"/filesystems/{index}"


def _claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def _secret_source(name: str) -> dict[str, Any]:
    return {"secret": {"secretName": name, "defaultMode": 0o400}}


def _secret(namespace: str, name: str, files: dict[str, str]) -> KubernetesObject:
    data = {file: base64.b64encode(text.encode()).decode() for file, text in files.items()}
    metadata = {"name": name, "namespace": namespace, "labels": {INSTANCE_LABEL: namespace}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
