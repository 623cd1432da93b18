"""A Kubernetes Pod as libpod container specs.

Pure: all that is found out elsewhere (address, folders to mount, values of secrets) comes in with `Resolved`.
A pod with one container becomes one container with its own network, which starts a third faster than a libpod
pod. Several containers share the network of a sandbox container that does nothing else. So does a pod with a
user namespace: Podman 4.3 cannot restart a container that has one and a fixed address ("already allocated").
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from neocloud.engines.base import KubernetesObject
from neocloud.engines.interface import pod_fingerprint
from neocloud.engines.manifests import quantity
from neocloud.engines.pod_fields import is_device
from neocloud.engines.podman.environment import Contents, container_environment, expand_all
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network.dns import hostname_of
from neocloud.engines.podman.storage.images import ENVIRONMENT, full_image_name
from neocloud.engines.podman.storage.user_namespaces import id_mappings

SANDBOX = "_"
"""Container name of the sandbox; no real container can be called so."""
GPU = "nvidia.com/gpu"
SUB_PATHS_LABEL, SUB_PATHS = "neocloud.sub-paths", "mounted"
"""On containers whose sub-paths are mount points of pod_mounts.py; older ones name the volume's files."""
FIRST_ID_LABEL = "neocloud.first-id"
"""On containers with a user namespace: the id of this machine that their root has."""
_PERIOD = 100_000
_READ_ONLY = ["nosuid", "noexec", "nodev", "ro"]
_KERNEL_MOUNTS = [
    {"type": "sysfs", "source": "sysfs", "destination": "/sys", "options": _READ_ONLY},
    {"type": "cgroup", "source": "cgroup", "destination": "/sys/fs/cgroup", "options": _READ_ONLY},
]
"""Podman would show this machine's own /sys to a container that joins a network and has a user namespace."""
_RESTART = {"Always": "always", "OnFailure": "on-failure", "Never": "no"}
_PROPAGATION = {"None": "rprivate", "HostToContainer": "rslave", "Bidirectional": "rshared"}

Spec = dict[str, Any]


@dataclass(frozen=True)
class Resolved:
    """What the pod refers to, looked up."""

    address: IPv4Address
    hosts_file: Path
    network: str = ""
    """Podman's name of the network, when it is not the namespace's."""
    mac: str = ""
    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Folder or file on this machine by volume name."""
    sub_paths: Mapping[tuple[str, str], Path] = field(default_factory=dict)
    """Mount point by volume name and subPath; see pod_mounts.py."""
    config_maps: Contents = field(default_factory=dict)
    secrets: Contents = field(default_factory=dict)
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """GPU numbers by container name."""
    root_filesystems: Mapping[str, Path] = field(default_factory=dict)
    """Folder by image name, of images that are one; that of SANDBOX, for a pod with a user namespace."""
    first_id: int = 0
    """The id of this machine that root of the pod has in its user namespace; 0 for a pod without one."""


def podman_names(manifest: KubernetesObject, first_id: int) -> dict[str, str]:
    """Podman's name by container name, in the order in which they start."""
    metadata = manifest["metadata"]
    names = [container["name"] for container in manifest["spec"]["containers"]]
    if len(names) > 1 or first_id:
        names.insert(0, SANDBOX)
    return {name: f"{metadata['namespace']}.{metadata['name']}.{name}" for name in names}


def container_specs(manifest: KubernetesObject, resolved: Resolved, layout: Layout) -> list[Spec]:
    """Bodies for `POST containers/create`, in the order in which they start."""
    names = podman_names(manifest, resolved.first_id)
    containers = manifest["spec"]["containers"]
    specs = [_container(manifest, container, resolved, layout) for container in containers]
    owner = _network_owner(manifest, resolved, layout)
    if SANDBOX not in names:
        return [_merged(specs[0], owner)]
    identity = _identity(manifest, SANDBOX, resolved, layout)
    sandbox = _merged(_merged(identity, owner), _sandbox(resolved, layout))
    for spec in specs:
        spec |= _joined(manifest, names[SANDBOX], resolved)
        if resolved.first_id:
            spec["mounts"] += _KERNEL_MOUNTS
    return [sandbox, *specs]


def _merged(first: Spec, second: Spec) -> Spec:
    return {**first, **second, "labels": {**first["labels"], **second.get("labels", {})}}


def _identity(manifest: KubernetesObject, container: str, resolved: Resolved, layout: Layout) -> Spec:
    metadata = manifest["metadata"]
    return {
        **(id_mappings(resolved.first_id) if resolved.first_id else {}),
        "name": podman_names(manifest, resolved.first_id)[container],
        "cgroup_parent": layout.cgroup,
        "labels": {
            "neocloud.home": layout.label,
            "neocloud.namespace": metadata["namespace"],
            "neocloud.pod": metadata["name"],
            "neocloud.container": container,
            "neocloud.spec": pod_fingerprint(manifest),
            SUB_PATHS_LABEL: SUB_PATHS,
            FIRST_ID_LABEL: str(resolved.first_id),
        },
    }


def published_ports(manifest: KubernetesObject) -> list[dict[str, Any]]:
    """The ports of this machine that lead to the pod, on loopback unless it says otherwise."""
    return [
        {
            "host_ip": port.get("hostIP") or "127.0.0.1",
            "host_port": port["hostPort"],
            "container_port": port["containerPort"],
            "protocol": port.get("protocol", "TCP").lower(),
        }
        for container in manifest["spec"]["containers"]
        for port in container.get("ports") or []
        if "hostPort" in port
    ]


def _network_owner(manifest: KubernetesObject, resolved: Resolved, layout: Layout) -> Spec:
    """The container that holds the pod's address, name and published ports."""
    network = resolved.network or layout.network(manifest["metadata"]["namespace"])
    card = {"static_mac": resolved.mac} if resolved.mac else {}
    sysctls = (manifest["spec"].get("securityContext") or {}).get("sysctls") or []
    return {
        "labels": {"neocloud.network": "owner"},
        "hostname": hostname_of(manifest),
        "netns": {"nsmode": "bridge"},
        "Networks": {network: {"static_ips": [str(resolved.address)], **card}},
        "portmappings": published_ports(manifest),
        "sysctl": {entry["name"]: entry["value"] for entry in sysctls},
    }


def _joined(manifest: KubernetesObject, sandbox: str, resolved: Resolved) -> Spec:
    namespace = {"nsmode": "container", "value": sandbox}
    joined: Spec = {"netns": namespace, "ipcns": namespace, "utsns": namespace}
    if resolved.first_id:
        joined["userns"] = namespace
    if manifest["spec"].get("shareProcessNamespace"):
        # The sandbox is process 1 of all and reaps; a second init would be in its way.
        joined |= {"pidns": namespace, "init": False}
    return joined


def _sandbox(resolved: Resolved, layout: Layout) -> Spec:
    return {
        "rootfs": str(resolved.root_filesystems.get(SANDBOX, layout.sandbox)),
        "rootfs_overlay": resolved.first_id > 0,  # its root cannot make the places of mounts in ours
        "command": ["/catatonit", "-P"],
        "restart_policy": "always",
        "stop_timeout": 1,
        "ipcns": {"nsmode": "shareable"},
        "use_image_hosts": True,
        "use_image_resolve_conf": True,
    }


def _container(
    manifest: KubernetesObject, container: Mapping[str, Any], resolved: Resolved, layout: Layout
) -> Spec:
    spec = manifest["spec"]
    values = container_environment(
        manifest, container, resolved.address, resolved.config_maps, resolved.secrets
    )
    devices = resolved.devices.get(container["name"], ())
    body: Spec = {
        **_identity(manifest, container["name"], resolved, layout),
        **_root(container["image"], values, resolved),
        "command": expand_all(container.get("args") or [], values),
        "init": True,
        "systemd": "false",
        "image_volume_mode": "ignore",
        "use_image_hosts": True,
        "use_image_resolve_conf": True,
        "restart_policy": _RESTART[spec.get("restartPolicy", "Always")],
        "stop_timeout": spec.get("terminationGracePeriodSeconds", 30),
        "mounts": _mounts(container, resolved, layout),
        "devices": [{"path": f"{GPU}={number}"} for number in devices] + _devices(manifest, container),
        "resource_limits": _limits(container.get("resources") or {}),
        **_security(spec.get("securityContext") or {}, container.get("securityContext") or {}),
    }
    body["labels"]["neocloud.gpus"] = ",".join(str(number) for number in devices)
    if container.get("command"):
        body["entrypoint"] = expand_all(container["command"], values)
    if container.get("workingDir"):
        body["work_dir"] = container["workingDir"]
    return body


def _root(image: str, values: Mapping[str, str], resolved: Resolved) -> Spec:
    """What the container runs from, and its environment."""
    folder = resolved.root_filesystems.get(image)
    if folder is None:
        return {"image": full_image_name(image), "env": values}
    return {"rootfs": str(folder), "rootfs_overlay": True, "env": {**ENVIRONMENT, **values}}


def _mounts(container: Mapping[str, Any], resolved: Resolved, layout: Layout) -> list[Spec]:
    mounts = [
        _bind(resolved.hosts_file, "/etc/hosts", ["ro", "rprivate"]),
        _bind(layout.resolv_conf, "/etc/resolv.conf", ["ro", "rprivate"]),
    ]
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in resolved.volumes:
            continue  # a device, which is handed over as one: as a mere mount it could not be opened
        source = resolved.volumes[mount["name"]]
        if mount.get("subPath"):
            source = resolved.sub_paths[mount["name"], mount["subPath"]]
        access = "ro" if mount.get("readOnly") else "rw"
        propagation = _PROPAGATION[mount.get("mountPropagation", "None")]
        mounts.append(_bind(source, mount["mountPath"], [access, propagation]))
    return mounts


def _devices(manifest: KubernetesObject, container: Mapping[str, Any]) -> list[Spec]:
    """Character devices of this machine, at the paths where their volumes are mounted."""
    paths = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in manifest["spec"].get("volumes") or []
        if is_device(volume.get("hostPath") or {})
    }
    mounts = [mount for mount in container.get("volumeMounts") or [] if mount["name"] in paths]
    return [
        {"path": f"{paths[mount['name']]}:{mount['mountPath']}:{'r' if mount.get('readOnly') else 'rw'}"}
        for mount in mounts
    ]


def _bind(source: Path, destination: str, options: list[str]) -> Spec:
    return {
        "type": "bind",
        "source": str(source),
        "destination": destination,
        "options": ["rbind", *options],
    }


def _limits(resources: Mapping[str, Any]) -> Spec:
    limits = resources.get("limits") or {}
    translated: Spec = {}
    if "cpu" in limits:
        quota = max(1000, int(quantity(limits["cpu"], "cpu") * _PERIOD))
        translated["cpu"] = {"quota": quota, "period": _PERIOD}
    if "memory" in limits:
        translated["memory"] = {"limit": int(quantity(limits["memory"], "memory"))}
    return translated


def _security(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Spec:
    translated: Spec = {}
    user = container.get("runAsUser", pod.get("runAsUser"))
    group = container.get("runAsGroup", pod.get("runAsGroup"))
    if user is not None or group is not None:
        translated["user"] = f"{user or 0}" + (f":{group}" if group is not None else "")
    if pod.get("supplementalGroups"):
        translated["groups"] = [str(number) for number in pod["supplementalGroups"]]
    capabilities = container.get("capabilities") or {}
    translated["cap_add"] = _capabilities(capabilities.get("add"))
    translated["cap_drop"] = _capabilities(capabilities.get("drop"))
    translated["read_only_filesystem"] = bool(container.get("readOnlyRootFilesystem"))
    translated["no_new_privileges"] = container.get("allowPrivilegeEscalation") is False
    return translated


def _capabilities(names: list[str] | None) -> list[str]:
    return [name if name == "ALL" else f"CAP_{name.removeprefix('CAP_')}" for name in names or []]
