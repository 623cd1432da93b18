"""A Kubernetes Pod as libpod container specs, with the environment variables of its containers.

Pure: everything that is found out elsewhere (address, folders to mount, values of secrets) is in `Resolved`.
A pod with one container becomes one container with its own network, which starts a third faster than a libpod
pod. Several containers share the network of a sandbox container that does nothing else. So does a pod with a
user namespace: Podman 4.3 cannot restart a container that has one and a fixed address ("already allocated").

Values taken from Secrets end up in Podman's container record on disk (readable by root only); mount a Secret
instead where that matters.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from neocloud.engines.base import EngineError
from neocloud.engines.images import ImageSettings
from neocloud.engines.manifest import (
    Container,
    LinuxCapabilities,
    Pod,
    PodSecurityContext,
    SecurityContext,
    VariableSource,
    quantity,
)
from neocloud.engines.podman.gpus.cdi import LABEL, Device
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.libpod import ENVIRONMENT, full_image_name
from neocloud.engines.podman.storage.pod_mounts import SubPath, id_mappings

SANDBOX = "_"
"""Container name of the sandbox; no real container can be called so."""
SUB_PATHS_LABEL, SUB_PATHS = "neocloud.sub-paths", "mounted"
"""On containers whose sub-paths are mount points of pod_mounts.py; older ones name the volume's files."""
FIRST_ID_LABEL = "neocloud.first-id"
CPUS_LABEL = "neocloud.cpus"
"""Label of containers with CPUs of their own; its value is the numbers of the CPUs."""
"""On containers with a user namespace: the id of this machine that their root has."""
_VFIO = "/dev/vfio/"
_UNLIMITED = 2**64 - 1
"""QEMU locks all memory of a guest that has a device by VFIO."""
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


Contents = Mapping[str, Mapping[str, bytes]]
"""Files by object name and key."""


@dataclass(frozen=True)
class Resolved:
    """The addresses, paths and contents that a pod refers to."""

    address: IPv4Address
    hosts_file: Path
    network: str = ""
    """Podman's name of the network, when it is not the namespace's."""
    mac: str = ""
    volumes: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Folder or file on this machine by volume name."""
    sub_paths: Mapping[SubPath, Path] = field(default_factory=dict[SubPath, Path])
    """Mount point by volume name and subPath; see pod_mounts.py."""
    config_maps: Contents = field(default_factory=dict[str, Mapping[str, bytes]])
    secrets: Contents = field(default_factory=dict[str, Mapping[str, bytes]])
    devices: Mapping[str, tuple[Device, ...]] = field(default_factory=dict[str, tuple[Device, ...]])
    """GPUs by container name."""
    cpus: Mapping[str, str] = field(default_factory=dict[str, str])
    """CPUs of containers that have their own, such as "0,1", by container name."""
    root_filesystems: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Folder by image name, of images that are one; that of SANDBOX, for a pod with a user namespace."""
    disks: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Root by container name, of containers whose disk has a size; see container_disks.py."""
    image_settings: Mapping[str, ImageSettings] = field(default_factory=dict[str, ImageSettings])
    """Settings by image name, of images that were pulled."""
    first_id: int = 0
    """The id of this machine that root of the pod has in its user namespace; 0 for a pod without one."""


def podman_names(pod: Pod, first_id: int) -> dict[str, str]:
    """Podman's name by container name, in the order in which they start."""
    names = [container.name for container in pod.containers]
    if len(names) > 1 or first_id:
        names.insert(0, SANDBOX)
    return {name: f"{pod.namespace}.{pod.name}.{name}" for name in names}


def container_specs(pod: Pod, resolved: Resolved, layout: Layout) -> list[Spec]:
    """Bodies for `POST containers/create`, in the order in which they start."""
    names = podman_names(pod, resolved.first_id)
    specs = [_container(pod, container, resolved, layout) for container in pod.containers]
    owner = _network_owner(pod, resolved, layout)
    if SANDBOX not in names:
        return [_merged(specs[0], owner)]
    identity = _identity(pod, SANDBOX, resolved, layout)
    sandbox = _merged(_merged(identity, owner), _sandbox(resolved, layout))
    for spec in specs:
        spec |= _joined(pod, names[SANDBOX], resolved)
        if resolved.first_id:
            spec["mounts"] += _KERNEL_MOUNTS
    return [sandbox, *specs]


def _merged(first: Spec, second: Spec) -> Spec:
    return {**first, **second, "labels": {**first["labels"], **second.get("labels", {})}}


def _identity(pod: Pod, container: str, resolved: Resolved, layout: Layout) -> Spec:
    return {
        **(id_mappings(resolved.first_id) if resolved.first_id else {}),
        "name": podman_names(pod, resolved.first_id)[container],
        "cgroup_parent": layout.cgroup,
        "labels": {
            "neocloud.home": layout.label,
            "neocloud.namespace": pod.namespace,
            "neocloud.pod": pod.name,
            "neocloud.container": container,
            "neocloud.spec": pod.fingerprint,
            SUB_PATHS_LABEL: SUB_PATHS,
            FIRST_ID_LABEL: str(resolved.first_id),
        },
    }


def published_ports(pod: Pod) -> list[Spec]:
    """Return the ports of this machine that lead to the pod; on loopback unless the pod names an address."""
    return [
        {
            "host_ip": port.host_ip or "127.0.0.1",
            "host_port": port.host_port,
            "container_port": port.container_port,
            "protocol": (port.protocol or "TCP").lower(),
        }
        for container in pod.containers
        for port in container.ports or ()
        if port.host_port is not None
    ]


def _network_owner(pod: Pod, resolved: Resolved, layout: Layout) -> Spec:
    """The container that holds the pod's address, name and published ports."""
    network = resolved.network or layout.network(pod.namespace)
    card = {"static_mac": resolved.mac} if resolved.mac else {}
    sysctls = pod.security_context.sysctls if pod.security_context else ()
    return {
        "labels": {"neocloud.network": "owner"},
        "hostname": pod.host_name,
        "netns": {"nsmode": "bridge"},
        "Networks": {network: {"static_ips": [str(resolved.address)], **card}},
        "portmappings": published_ports(pod),
        "sysctl": {entry.name: entry.value for entry in sysctls},
    }


def _joined(pod: Pod, sandbox: str, resolved: Resolved) -> Spec:
    namespace = {"nsmode": "container", "value": sandbox}
    joined: Spec = {"netns": namespace, "ipcns": namespace, "utsns": namespace}
    if resolved.first_id:
        joined["userns"] = namespace
    if pod.share_process_namespace:
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


def _container(pod: Pod, container: Container, resolved: Resolved, layout: Layout) -> Spec:
    values = container_environment(pod, container, resolved.address, resolved.config_maps, resolved.secrets)
    devices = resolved.devices.get(container.name, ())
    cpus = resolved.cpus.get(container.name, "")
    settings = resolved.image_settings.get(container.image, ImageSettings())
    body: Spec = {
        **_identity(pod, container.name, resolved, layout),
        **_root(container, values, resolved),
        "command": _arguments(container, settings, values),
        "init": True,
        "systemd": "false",
        "image_volume_mode": "ignore",
        "use_image_hosts": True,
        "use_image_resolve_conf": True,
        "restart_policy": _RESTART[pod.policy],
        "stop_timeout": pod.grace_seconds,
        "mounts": _mounts(pod, container, resolved, layout),
        "devices": [{"path": device.name} for device in devices] + _devices(pod, container),
        "resource_limits": _limits(container, cpus),
        **_security(
            pod.security_context or PodSecurityContext(), container.security_context or SecurityContext()
        ),
        **_filter(container, layout),
    }
    body["labels"][LABEL] = ",".join(device.key for device in devices)
    body["labels"][CPUS_LABEL] = cpus
    if any(device["path"].startswith(_VFIO) for device in body["devices"]):
        body["r_limits"] = [{"type": "memlock", "soft": _UNLIMITED, "hard": _UNLIMITED}]
    if container.command or settings.entrypoint:
        body["entrypoint"] = expand_all(container.command, values) or list(settings.entrypoint)
    if container.working_dir or settings.working_dir:
        body |= {"work_dir": container.working_dir or settings.working_dir, "create_working_dir": True}
    if settings.user:
        body.setdefault("user", settings.user)
    return body


def _arguments(container: Container, settings: ImageSettings, values: Mapping[str, str]) -> list[str]:
    """Return what follows the entry point; an image's own arguments are for its own entry point."""
    own = () if container.command else settings.command
    return expand_all(container.args, values) or list(own)


def _root(container: Container, values: Mapping[str, str], resolved: Resolved) -> Spec:
    """Return the source of the container's root file system, and its environment."""
    disk = resolved.disks.get(container.name)
    folder = disk or resolved.root_filesystems.get(container.image)
    if folder is None:
        return {"image": full_image_name(container.image), "env": values}
    settings = resolved.image_settings.get(container.image, ImageSettings())
    own = dict(each.split("=", 1) for each in settings.variables)
    return {"rootfs": str(folder), "rootfs_overlay": disk is None, "env": {**ENVIRONMENT, **own, **values}}


def _mounts(pod: Pod, container: Container, resolved: Resolved, layout: Layout) -> list[Spec]:
    files = {
        "/etc/hosts": resolved.hosts_file,
        "/etc/resolv.conf": layout.resolv_conf,
        # Podman's own are files of the host that the container can write to, without a limit.
        "/etc/hostname": layout.host_name_file(pod.reference),
        "/run/.containerenv": layout.container_mark,
    }
    mounts = [_bind(source, path, ["ro", "rprivate"]) for path, source in files.items()]
    for mount in container.volume_mounts:
        if mount.name not in resolved.volumes:
            continue  # a device, which is passed as one: as a mere mount it could not be opened
        source = resolved.volumes[mount.name]
        if mount.sub_path:
            source = resolved.sub_paths[mount.name, mount.sub_path]
        access = "ro" if mount.read_only else "rw"
        propagation = _PROPAGATION[mount.mount_propagation or "None"]
        mounts.append(_bind(source, mount.mount_path, [access, propagation]))
    return mounts


def _devices(pod: Pod, container: Container) -> list[Spec]:
    """Character devices of this machine, at the paths where their volumes are mounted."""
    sources = ((volume.name, volume.host_path) for volume in pod.volumes)
    paths = {name: source.path for name, source in sources if source and source.is_device}
    return [
        {"path": f"{paths[mount.name]}:{mount.mount_path}:{'r' if mount.read_only else 'rw'}"}
        for mount in container.volume_mounts
        if mount.name in paths
    ]


def _bind(source: Path, destination: str, options: list[str]) -> Spec:
    return {
        "type": "bind",
        "source": str(source),
        "destination": destination,
        "options": ["rbind", *options],
    }


def _limits(container: Container, cpus: str) -> Spec:
    limits = container.limits
    translated: Spec = {}
    if "cpu" in limits:
        quota = max(1000, int(quantity(limits["cpu"], "cpu") * _PERIOD))
        translated["cpu"] = {"quota": quota, "period": _PERIOD, **({"cpus": cpus} if cpus else {})}
    if "memory" in limits:
        translated["memory"] = {"limit": int(quantity(limits["memory"], "memory"))}
    return translated


def _security(pod: PodSecurityContext, container: SecurityContext) -> Spec:
    translated: Spec = {}
    user = pod.run_as_user if container.run_as_user is None else container.run_as_user
    group = pod.run_as_group if container.run_as_group is None else container.run_as_group
    if user is not None or group is not None:
        translated["user"] = f"{user or 0}" + (f":{group}" if group is not None else "")
    if pod.supplemental_groups:
        translated["groups"] = [str(number) for number in pod.supplemental_groups]
    capabilities = container.capabilities or LinuxCapabilities()
    translated["cap_add"] = _capabilities(capabilities.add)
    translated["cap_drop"] = _capabilities(capabilities.drop)
    translated["read_only_filesystem"] = bool(container.read_only_root_filesystem)
    translated["no_new_privileges"] = container.allow_privilege_escalation is False
    return translated


def _filter(container: Container, layout: Layout) -> Spec:
    """A container that has given up the right to another root makes no namespaces and mounts nothing."""
    rights = (container.security_context or SecurityContext()).capabilities or LinuxCapabilities()
    if "SYS_CHROOT" not in rights.drop or not layout.no_namespaces.exists():
        return {}
    return {"seccomp_profile_path": str(layout.no_namespaces)}


def _capabilities(names: Sequence[str]) -> list[str]:
    return [name if name == "ALL" else f"CAP_{name.removeprefix('CAP_')}" for name in names]


_REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")


def container_environment(
    pod: Pod,
    container: Container,
    address: IPv4Address,
    config_maps: Contents,
    secrets: Contents,
) -> dict[str, str]:
    values: dict[str, str] = {}
    for source in container.env_from:
        for reference, objects in ((source.config_map_ref, config_maps), (source.secret_ref, secrets)):
            for key, content in objects[reference.name].items() if reference else ():
                values[source.prefix + key] = content.decode()
    for variable in container.env or ():
        if variable.value_from:
            value = _value_of(variable.value_from, pod, address, config_maps, secrets)
        else:
            value = expand(variable.value or "", values)
        values[variable.name] = value
    return values


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) where NAME is known; $$ stands for one dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return values.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def expand_all(texts: Sequence[str], values: Mapping[str, str]) -> list[str]:
    return [expand(text, values) for text in texts]


def _value_of(
    source: VariableSource,
    pod: Pod,
    address: IPv4Address,
    config_maps: Contents,
    secrets: Contents,
) -> str:
    for reference, objects in ((source.secret_key_ref, secrets), (source.config_map_key_ref, config_maps)):
        if reference:
            contents = objects.get(reference.name, {})
            if reference.key in contents:
                return contents[reference.key].decode()
            if reference.optional:
                return ""
            raise EngineError(
                f"Pod {pod.name} needs key {reference.key!r} of {reference.name}, which is not there."
            )
    assert source.field_ref is not None, "a source is one of the three"
    return _field(source.field_ref.field_path, pod, address)


def _field(path: str, pod: Pod, address: IPv4Address) -> str:
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "status.podIP": str(address),
    }
    if path not in fields:
        raise EngineError(
            f"Pod {pod.name}: fieldRef {path!r} is not supported; use one of {', '.join(fields)}."
        )
    return fields[path]
