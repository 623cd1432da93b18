"""Volumes of a pod, and the claims that outlive pods. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import ClassVar, Self

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.engines.manifest.base import (
    Document,
    ManifestError,
    Metadata,
    Namespaced,
    as_mapping,
    check_choice,
    check_name,
    decode,
    quantity,
)

CLAIM = "PersistentVolumeClaim"
ROOT_FILESYSTEM = "RootFilesystem"
MACHINE_IMAGE = "MachineImage"
_SOURCE_KINDS = (ROOT_FILESYSTEM, CLAIM, MACHINE_IMAGE)
_OWN_GROUP = "neocloud.dev"
SHARED = "ReadWriteMany"
"""Access mode of volumes that many pods write in."""
DISK = "disk.qcow2"
"""The one file of a machine's disk."""


@dataclass(frozen=True)
class KeyToPath:
    key: str
    path: str

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ManifestError(f"{self.path!r} must stay inside the volume.", field="path")


@dataclass(frozen=True, kw_only=True)
class ConfigMapSource:
    name: str
    items: tuple[KeyToPath, ...] | None = None
    default_mode: int | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "name")


@dataclass(frozen=True, kw_only=True)
class SecretSource:
    name: str = field(metadata={"key": "secretName"})
    items: tuple[KeyToPath, ...] | None = None
    default_mode: int | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "secretName")


@dataclass(frozen=True)
class ClaimSource:
    claim_name: str
    namespace: str = field(default="", metadata={"key": ""})
    """Where the claim lies; "" for the pod's own namespace. Written as the pod's annotation."""
    read_only: bool = False

    def __post_init__(self) -> None:
        check_name(self.claim_name, "claimName")
        if self.namespace:
            check_name(self.namespace, "namespace", label=True)


@dataclass(frozen=True)
class HostPath:
    """A folder, file or device of the machine."""

    path: str
    type: str | None = None

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path)
        if not path.is_absolute():
            raise ManifestError("must be an absolute path.", field="path")
        if self.is_device and (path.parts[:2] != ("/", "dev") or ".." in path.parts):
            raise ManifestError(f"is {path}; a CharDevice must lie below /dev.", field="path")

    @property
    def is_device(self) -> bool:
        """Return whether it is a device, such as /dev/kvm, that containers may use."""
        return self.type == "CharDevice"


@dataclass(frozen=True)
class EmptyDir:
    """Scratch space that is removed with its pod."""

    medium: str | None = None
    size_limit: str | int | None = None

    def __post_init__(self) -> None:
        if self.medium not in (None, "", "Memory"):
            raise ManifestError("must be Memory or left out.", field="medium")
        if self.size_limit is not None:
            quantity(self.size_limit, "sizeLimit")

    @property
    def size_bytes(self) -> int | None:
        return None if self.size_limit is None else int(quantity(self.size_limit, "sizeLimit"))


@dataclass(frozen=True)
class Volume:
    """A volume of a pod, with exactly one source."""

    name: str
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    claim: ClaimSource | None = field(default=None, metadata={"key": "persistentVolumeClaim"})
    host_path: HostPath | None = None
    empty_dir: EmptyDir | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "name", label=True)
        sources = (self.config_map, self.secret, self.claim, self.host_path, self.empty_dir)
        if sources.count(None) != len(sources) - 1:
            raise ManifestError(
                "needs exactly one of configMap, secret, persistentVolumeClaim, hostPath and emptyDir.",
                field=self.name,
            )

    @classmethod
    def in_memory(cls, name: str, size: str) -> "Volume":
        return cls(name, empty_dir=EmptyDir("Memory", size))

    @classmethod
    def of_claim(cls, name: str, claim: str, namespace: str = "") -> "Volume":
        return cls(name, claim=ClaimSource(claim, namespace))

    @classmethod
    def of_secret(cls, name: str, secret: str, mode: int = 0o400) -> "Volume":
        return cls(name, secret=SecretSource(name=secret, default_mode=mode))

    @classmethod
    def of_host(cls, name: str, path: str, type: str | None = None) -> "Volume":
        return cls(name, host_path=HostPath(path, type))

    @property
    def is_device(self) -> bool:
        return self.host_path is not None and self.host_path.is_device


@dataclass(frozen=True)
class DataSource:
    """The initial content of a claim.

    `RootFilesystem` is a root file system of this cloud, shared below the claim; `PersistentVolumeClaim` a
    copy of another claim's files; `MachineImage` a copy of an image's disk, as `disk.qcow2`.
    """

    kind: str
    name: str
    namespace: str = ""
    """Namespace of a claim; empty for the others."""

    def __post_init__(self) -> None:
        check_choice(self.kind, _SOURCE_KINDS, "kind")
        check_name(self.name, "name")
        if self.kind == CLAIM:
            check_name(self.namespace, "namespace", label=True)

    @property
    def claim(self) -> Reference:
        return Reference(CLAIM, self.namespace, self.name)

    def to_dict(self) -> KubernetesObject:
        if self.kind == CLAIM:
            return {"kind": CLAIM, "namespace": self.namespace, "name": self.name}
        return {"apiGroup": _OWN_GROUP, "kind": self.kind, "name": self.name}

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" of namespace {self.namespace}" if self.namespace else "")


@dataclass(frozen=True, kw_only=True)
class VolumeClaim(Namespaced):
    """A volume that outlives pods (a PersistentVolumeClaim)."""

    kind: ClassVar[str] = CLAIM

    storage: str | int
    """Its size, as a quantity."""
    access_modes: tuple[str, ...] = ("ReadWriteOnce",)
    data_source: DataSource | None = None

    def _check(self) -> None:
        if self.size_bytes < 1:
            raise ManifestError("must be more than 0.", field="storage")
        if self.data_source and self.data_source.claim == self.reference:
            raise ManifestError("is the claim itself; name another.", field="dataSourceRef")

    @property
    def size_bytes(self) -> int:
        return int(quantity(self.storage, "storage"))

    @property
    def is_filesystem(self) -> bool:
        """Return whether it is a filesystem of a tenant, which many pods share; its size is enforced.

        Other volumes hold a machine's disk, whose file has a size of its own, or data of our own programs.
        """
        return SHARED in self.access_modes

    def _body(self) -> KubernetesObject:
        spec: KubernetesObject = {
            "accessModes": list(self.access_modes),
            "resources": {"requests": {"storage": self.storage}},
        }
        if self.data_source:
            spec["dataSourceRef"] = self.data_source.to_dict()
        return {"spec": spec}

    @classmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self:
        spec = decode(_ClaimSpec, as_mapping(body.get("spec") or {}, "spec"))
        storage = spec.resources.requests.get("storage") if spec.resources else None
        if storage is None:
            raise ManifestError("has no size; set spec.resources.requests.storage.")
        source = spec.data_source_ref
        return cls(
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            storage=storage,
            access_modes=spec.access_modes,
            data_source=source.within(metadata.namespace) if source else None,
        )


@dataclass(frozen=True)
class _Requests:
    requests: Mapping[str, str | int] = field(default_factory=dict[str, str | int])


@dataclass(frozen=True)
class _SourceReference:
    kind: str
    name: str
    namespace: str = ""
    api_group: str | None = None

    def within(self, namespace: str) -> DataSource:
        try:
            if self.kind != CLAIM:
                return DataSource(self.kind, self.name)
            return DataSource(self.kind, self.name, self.namespace or namespace)
        except ManifestError as error:
            raise error.within("dataSourceRef") from error


@dataclass(frozen=True)
class _ClaimSpec:
    access_modes: tuple[str, ...] = ("ReadWriteOnce",)
    resources: _Requests | None = None
    data_source_ref: _SourceReference | None = None
