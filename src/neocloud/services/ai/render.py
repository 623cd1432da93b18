"""Render a workload: its namespace, its files as a Secret, one pod on its subnet. Pure.

A tenant's texts become list items; no shell interprets them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocloud.engines.base import Reference
from neocloud.engines.manifest import (
    Container,
    ContainerPort,
    Interface,
    LinuxCapabilities,
    Manifest,
    Mount,
    Namespace,
    Pod,
    Secret,
    SecurityContext,
    Volume,
    limits,
    variables,
)
from neocloud.services.ai.types import CONTAINER, POD

WORKLOAD_LABEL = "neocloud.dev/ai-workload"
RUN_LABEL = "neocloud.dev/ai-run"
DISK_LABEL = "neocloud.dev/ai-disk"
"""Size of the container's disk; pods of earlier versions have none, and no limit."""
FILES_SECRET = "files"
SHM_BYTES = 64 * 1024 * 1024
GRACE_SECONDS = 10
DROPPED = ("MKNOD", "NET_RAW", "SYS_CHROOT", "AUDIT_WRITE")
"""Capabilities that engines give by default: for devices, raw packets, another root, and audit records."""


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
    """The name of the attempt; another attempt has another pod."""
    image: str
    command: Sequence[str]
    args: Sequence[str]
    working_dir: str
    variables: Mapping[str, str]
    ports: Sequence[tuple[int, str]]
    """Number and protocol, "TCP" or "UDP"."""
    files: Sequence[tuple[str, bytes]]
    mounts: Sequence[MountView]
    interface: Interface
    vcpus: int
    memory_mib: int
    disk_bytes: int
    """0: no limit."""
    gpus: int
    gpu_type: str
    shm_bytes: int
    is_restarted: bool
    """Whether the engine restarts the program when it ends."""


def workload_objects(view: WorkloadView) -> list[Manifest]:
    labels = {WORKLOAD_LABEL: view.id}
    objects: list[Manifest] = [Namespace(name=view.id, labels=labels)]
    if view.files:
        contents = {_file(index): content for index, (_, content) in enumerate(view.files)}
        objects.append(Secret(name=FILES_SECRET, namespace=view.id, labels=labels, contents=contents))
    return [*objects, _pod(view)]


def _pod(view: WorkloadView) -> Pod:
    volumes, mounts = _volumes(view)
    disk = {DISK_LABEL: str(view.disk_bytes)} if view.disk_bytes else {}
    return Pod(
        name=POD,
        namespace=view.id,
        labels={WORKLOAD_LABEL: view.id, RUN_LABEL: view.run, **disk},
        interface=view.interface,
        gpu_type=view.gpu_type,
        host_users=False,  # root of an image is nobody on the machine, where the engine can do so
        hostname=view.id,
        restart_policy="Always" if view.is_restarted else "Never",
        termination_grace_period_seconds=GRACE_SECONDS,
        automount_service_account_token=False,
        enable_service_links=False,
        containers=(_container(view, mounts),),
        volumes=tuple(volumes),
    )


def _container(view: WorkloadView, mounts: Sequence[Mount]) -> Container:
    return Container(
        name=CONTAINER,
        image=view.image,
        image_pull_policy="Never",
        command=tuple(view.command),
        args=tuple(view.args),
        working_dir=view.working_dir or None,
        env=variables(view.variables),
        ports=tuple(ContainerPort(number, protocol) for number, protocol in view.ports),
        resources=limits(
            cpus=view.vcpus, memory_mib=view.memory_mib, gpus=view.gpus, disk_bytes=view.disk_bytes
        ),
        security_context=SecurityContext(
            allow_privilege_escalation=False, capabilities=LinuxCapabilities(drop=DROPPED)
        ),
        volume_mounts=tuple(mounts),
    )


def _volumes(view: WorkloadView) -> tuple[list[Volume], list[Mount]]:
    volumes = [Volume.in_memory("shm", str(view.shm_bytes or SHM_BYTES))]
    mounts = [Mount("shm", "/dev/shm")]
    names = {
        claim: f"filesystem-{index}"
        for index, claim in enumerate(dict.fromkeys(m.claim for m in view.mounts))
    }
    for claim, name in names.items():
        volumes.append(Volume.of_claim(name, claim.name, claim.namespace))
    for mount in view.mounts:
        sub_path = mount.sub_path or None
        mounts.append(Mount(names[mount.claim], mount.path, sub_path, read_only=mount.is_read_only))
    if view.files:
        volumes.append(Volume.of_secret("files", FILES_SECRET, mode=0o444))
    for index, (path, _) in enumerate(view.files):
        mounts.append(Mount("files", path, _file(index), read_only=True))
    return volumes, mounts


def _file(index: int) -> str:
    return f"file-{index}"
