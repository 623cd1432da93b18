"""Renders machines, and the volumes of disks, snapshots, images and filesystems, as Kubernetes objects. Pure.

A machine is a namespace, a Secret with its desired state, and the pod that runs QEMU. The Secret is not part
of the pod's spec, so a change of it does not replace the pod. A volume claim has a namespace of its own,
unless it lies in that of the filesystem's owner.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.engines.manifest import (
    ATTACHED_VOLUME,
    MACHINE_IMAGE,
    ROOT_FILESYSTEM,
    ClaimSource,
    Container,
    DataSource,
    EmptyDir,
    Interface,
    LinuxCapabilities,
    Manifest,
    Mount,
    Namespace,
    Pod,
    Secret,
    SecurityContext,
    Volume,
    VolumeClaim,
    limits,
)
from neocloud.services.compute.disk_limits import DiskLimits
from neocloud.services.compute.public import claim_name, claim_namespace
from neocloud.services.compute.started_pod import can_attach, folder_at_start
from neocloud.services.compute.types import (
    BOOT_DEVICE,
    POD_CONTAINER,
    POD_GRACE_SECONDS,
    ROOT_FILESYSTEM_LABEL,
)

INSTANCE_LABEL = "neocloud.dev/instance"
MACHINE_SECRET, MACHINE_FOLDER, MACHINE_FILE = "machine", "/etc/neocloud/machine", "machine.json"
KEY_PREFIX = "key-"
"""Begins the name of the file with a disk's key in MACHINE_FOLDER; the id of the disk follows."""
IDENTITY_SECRET, IDENTITY_FOLDER, TOKEN_FILE = "identity", "/etc/neocloud/identity", "token.json"
DISK_FILE = "disk.qcow2"
BOOT_FOLDER, ATTACHED_FOLDER = "/disks/0", "/disks/attached"
"""The other disks come and go below ATTACHED_FOLDER, each in a folder named after it."""
KVM = "kvm"
VFIO_FOLDER = "/dev/vfio/"
"""Holds the devices of IOMMU groups. The engine takes a group from its drivers for the pod that names it."""

LAUNCHER_CAPABILITIES = (
    "NET_ADMIN",  # wires the pod's interface to the guest's
    "NET_BIND_SERVICE",  # names and metadata at ports below 1024
    *("CHOWN", "DAC_OVERRIDE", "FOWNER"),  # gives QEMU its disks
    *("SETUID", "SETGID", "SETPCAP", "KILL"),  # runs QEMU as another user without any of these
)
FILESYSTEM_CAPABILITIES = ("SYS_CHROOT", "FSETID", "SETFCAP")
"""For virtiofsd, which serves files with their owners from one folder for each filesystem."""
MEMORY_FOR_QEMU_MIB = 512
"""Added to the guest's memory: QEMU itself, and under emulation the code it has translated."""


@dataclass(frozen=True)
class DiskView:
    id: str
    device_id: str
    size_bytes: int
    is_read_only: bool = False
    limits: DiskLimits | None = None
    key: str = field(default="", repr=False)
    """The key that it is encrypted with; empty for a disk that is not."""


@dataclass(frozen=True)
class SharedView:
    """An attached filesystem."""

    claim: Reference
    tag: str
    is_read_only: bool = False


@dataclass(frozen=True)
class InterfaceView:
    """The interface of a machine's pod, and what the guest needs to know beside it."""

    card: Interface
    prefix_length: int
    gateway: str
    domain: str
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
    detaching: tuple[DiskView, ...] = ()
    """Disks that the guest is to release; the pod shows them until it has."""
    started: KubernetesObject = field(default_factory=KubernetesObject)
    """The spec of its pod as it was started; empty before the start."""
    filesystems: tuple[SharedView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    user_data: str = ""
    has_identity: bool = False


def machine_objects(view: MachineView) -> list[Manifest]:
    """Return all objects of a machine but the pod."""
    desired = json.dumps(_desired_state(view), indent=1, sort_keys=True)
    namespace = Namespace(name=view.id, labels={INSTANCE_LABEL: view.id})
    keys = {f"{KEY_PREFIX}{disk.id}": disk.key for disk in view.disks if disk.key}
    return [namespace, _secret(view.id, MACHINE_SECRET, {MACHINE_FILE: desired} | keys)]


def identity_secret(instance_id: str, token: str, expires_at: str) -> Secret:
    """Return the Secret with the token that the machine's metadata service gives to programs in the guest."""
    content = json.dumps({"access_token": token, "expires_at": expires_at, "token_type": "Bearer"})
    return _secret(instance_id, IDENTITY_SECRET, {TOKEN_FILE: content})


def machine_pod(view: MachineView) -> Pod:
    """Return the pod of a machine that starts now."""
    serving = FILESYSTEM_CAPABILITIES if view.filesystems else ()
    mounted = list(_mounted(view))
    container = Container(
        name=POD_CONTAINER,
        image=view.image,
        image_pull_policy="Never",
        resources=limits(cpus=view.vcpus, memory_mib=view.memory_mib + MEMORY_FOR_QEMU_MIB),
        security_context=SecurityContext(
            allow_privilege_escalation=False,
            capabilities=LinuxCapabilities(add=(*LAUNCHER_CAPABILITIES, *serving), drop=("ALL",)),
        ),
        volume_mounts=tuple(mount for _, mount in mounted),
    )
    return Pod(
        name=view.id,
        namespace=view.id,
        labels={INSTANCE_LABEL: view.id},
        interface=view.interface.card,
        hostname=view.hostname,
        restart_policy=view.restart_policy,
        termination_grace_period_seconds=POD_GRACE_SECONDS,
        automount_service_account_token=False,
        enable_service_links=False,
        containers=(container,),
        volumes=tuple(volume for volume, _ in mounted),
        attached=tuple(
            ClaimSource(disk.id, disk.id, disk.is_read_only)
            for disk in (*view.disks[1:], *view.detaching)
            if not folder_at_start(view.started, disk.id)
        ),
    )


def _desired_state(view: MachineView) -> dict[str, object]:
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
            desired_disk(disk, view.started)
            for disk in view.disks
            if can_attach(view.started) or folder_at_start(view.started, disk.id)
        ],
        "filesystems": [
            {"tag": shared.tag, "path": _filesystem_folder(index), "read_only": shared.is_read_only}
            for index, shared in enumerate(view.filesystems)
        ],
        "interface": {
            "name": mine.name,
            "address": str(mine.card.address),
            "prefix_length": mine.prefix_length,
            "gateway": mine.gateway,
            "mac": mine.card.mac,
            "domain": mine.domain,
            "nameservers": [],
        },
        "hostname": view.hostname,
        "user_data": view.user_data,
        "gpus": [gpu.pci_address for gpu in view.gpus],
    }


def desired_disk(disk: DiskView, started: KubernetesObject) -> dict[str, object]:
    """Return the disk as machine.json and `attach-disk` describe it, in a pod that was started so."""
    default = BOOT_FOLDER if disk.device_id == BOOT_DEVICE else f"{ATTACHED_FOLDER}/{disk.id}"
    return {
        "id": disk.id,
        "path": f"{folder_at_start(started, disk.id) or default}/{DISK_FILE}",
        "size_bytes": disk.size_bytes,
        "read_only": disk.is_read_only,
        "device_id": disk.device_id,
        "is_boot": disk.device_id == BOOT_DEVICE,
        "limits": disk.limits.to_dict() if disk.limits else None,
        "encrypted": bool(disk.key),
    }


def _mounted(view: MachineView) -> Iterator[tuple[Volume, Mount]]:
    """Yield the volumes with their mounts in the container."""
    yield Volume.of_secret("machine", MACHINE_SECRET), Mount("machine", MACHINE_FOLDER, read_only=True)
    if view.has_identity:
        yield (
            Volume.of_secret("identity", IDENTITY_SECRET),
            Mount("identity", IDENTITY_FOLDER, read_only=True),
        )
    boot = view.disks[0]
    yield Volume.of_claim("disk-0", boot.id, boot.id), Mount("disk-0", BOOT_FOLDER)
    yield (
        Volume(ATTACHED_VOLUME, empty_dir=EmptyDir()),
        Mount(ATTACHED_VOLUME, ATTACHED_FOLDER, read_only=True, mount_propagation="HostToContainer"),
    )
    for index, shared in enumerate(view.filesystems):
        name = f"filesystem-{index}"
        yield (
            Volume.of_claim(name, shared.claim.name, shared.claim.namespace),
            Mount(name, _filesystem_folder(index), read_only=shared.is_read_only),
        )
    for name, device in _devices(view):
        yield Volume.of_host(name, device, "CharDevice"), Mount(name, device)


def _devices(view: MachineView) -> list[tuple[str, str]]:
    found = [("tun", "/dev/net/tun")]
    if view.acceleration == KVM:
        found.append(("kvm", "/dev/kvm"))
    if view.gpus:
        found.append(("vfio", f"{VFIO_FOLDER}vfio"))
        groups = sorted({gpu.iommu_group for gpu in view.gpus})
        found.extend((f"vfio-{group}", f"{VFIO_FOLDER}{group}") for group in groups)
    return found


def _filesystem_folder(index: int) -> str:
    return f"/filesystems/{index}"


def _secret(namespace: str, name: str, files: Mapping[str, str]) -> Secret:
    contents = {file: text.encode() for file, text in files.items()}
    return Secret(name=name, namespace=namespace, labels={INSTANCE_LABEL: namespace}, contents=contents)


NOUN_LABEL = "neocloud.dev/resource"


@dataclass(frozen=True)
class VolumeSource:
    """The source of a volume: a machine image by its name, or the volume of a resource by its id."""

    machine_image: str = ""
    resource_id: str = ""
    origin_id: str = ""
    """The id of the image or snapshot, in either form."""


@dataclass(frozen=True)
class VolumeView:
    id: str
    """The id of the resource, which is also the name of its namespace and its claim."""
    size_bytes: int
    source: VolumeSource = VolumeSource()

    @property
    def claim(self) -> Reference:
        return claim_of(self.id)


def claim_of(resource_id: str) -> Reference:
    return Reference("PersistentVolumeClaim", resource_id, resource_id)


def volume_objects(volume: VolumeView) -> list[Manifest]:
    labels = {NOUN_LABEL: volume.id}
    claim = VolumeClaim(
        name=volume.id,
        namespace=volume.id,
        labels=labels,
        storage=str(volume.size_bytes),
        data_source=_data_source(volume.source),
    )
    return [Namespace(name=volume.id, labels=labels), claim]


def volume_removal(volume: VolumeView) -> list[Reference]:
    return [volume.claim, Reference("Namespace", volume.id, volume.id)]


def _data_source(source: VolumeSource) -> DataSource | None:
    if source.machine_image:
        return DataSource(MACHINE_IMAGE, source.machine_image)
    if not source.resource_id:
        return None
    claim = claim_of(source.resource_id)
    return DataSource(claim.kind, claim.name, claim.namespace)


FILESYSTEM_LABEL = "neocloud.dev/filesystem"


@dataclass(frozen=True)
class FilesystemView:
    id: str
    size_bytes: int
    labels: Mapping[str, str]
    owner_id: str

    @property
    def namespace(self) -> str:
        return claim_namespace(self.id, self.labels, self.owner_id)

    @property
    def has_own_namespace(self) -> bool:
        return self.namespace == self.id

    @property
    def claim(self) -> Reference:
        return Reference("PersistentVolumeClaim", self.namespace, claim_name(self.id))

    @property
    def root_filesystem(self) -> str:
        return self.labels.get(ROOT_FILESYSTEM_LABEL, "") if self.owner_id else ""


def filesystem_objects(filesystem: FilesystemView) -> list[Manifest]:
    namespace = [_filesystem_namespace(filesystem)] if filesystem.has_own_namespace else []
    return [*namespace, _filesystem_claim(filesystem)]


def filesystem_removal(filesystem: FilesystemView) -> list[Reference]:
    """Return the objects to delete with the filesystem."""
    if filesystem.has_own_namespace:
        return [filesystem.claim, Reference("Namespace", filesystem.namespace, filesystem.namespace)]
    return [filesystem.claim]


def _filesystem_namespace(filesystem: FilesystemView) -> Namespace:
    return Namespace(name=filesystem.namespace, labels={FILESYSTEM_LABEL: filesystem.id})


def _filesystem_claim(filesystem: FilesystemView) -> VolumeClaim:
    source = filesystem.root_filesystem
    return VolumeClaim(
        name=filesystem.claim.name,
        namespace=filesystem.namespace,
        labels={FILESYSTEM_LABEL: filesystem.id},
        storage=str(filesystem.size_bytes),
        access_modes=("ReadWriteMany",),
        data_source=DataSource(ROOT_FILESYSTEM, source) if source else None,
    )
