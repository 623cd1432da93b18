"""What a PersistentVolumeClaim begins with: its `dataSourceRef`.

Pure. `RootFilesystem` is a root file system of this cloud, shared below the claim; `PersistentVolumeClaim` a
copy of another claim's files; `MachineImage` a copy of an image's disk, as `disk.qcow2`. Names are checked:
engines make paths of them.
"""

from dataclasses import dataclass

from neocloud.engines.base import EngineError, KubernetesObject, Reference
from neocloud.engines.manifests import check_name

ROOT_FILESYSTEM = "RootFilesystem"
CLAIM = "PersistentVolumeClaim"
MACHINE_IMAGE = "MachineImage"
KINDS = (ROOT_FILESYSTEM, CLAIM, MACHINE_IMAGE)
DISK = "disk.qcow2"
"""The one file of a machine's disk."""


@dataclass(frozen=True)
class DataSource:
    kind: str
    name: str
    namespace: str = ""
    """Of a claim; empty for the others."""

    @property
    def claim(self) -> Reference:
        return Reference(CLAIM, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" of namespace {self.namespace}" if self.namespace else "")


def data_source_of(manifest: KubernetesObject) -> DataSource | None:
    """None for an empty volume; EngineError when the source cannot be one."""
    metadata = manifest["metadata"]
    reference = (manifest.get("spec") or {}).get("dataSourceRef")
    if reference is None:
        return None
    where = f"PersistentVolumeClaim {metadata['name']}: dataSourceRef"
    kind = reference.get("kind") if isinstance(reference, dict) else None
    if kind not in KINDS:
        raise EngineError(f"{where} must be of kind {', '.join(KINDS)}, with a name.")
    check_name(reference.get("name"), f"name in {where}")
    if kind != CLAIM:
        return DataSource(kind, reference["name"])
    namespace = reference.get("namespace") or metadata["namespace"]
    check_name(namespace, f"namespace in {where}", label=True)
    source = DataSource(kind, reference["name"], namespace)
    if source.claim == Reference.of(manifest):
        raise EngineError(f"{where} is the claim itself; name another.")
    return source
