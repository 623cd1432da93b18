"""Manifests: the objects that an engine applies, as frozen dataclasses that are valid by construction. Pure.

`to_dict` writes a manifest as Kubernetes does, `read_manifest` reads one. A manifest that exists has names
that cannot climb out of a folder, quantities that are numbers, and mounts of volumes that are there.
"""

from collections.abc import Sequence

from neocloud.engines.base import Reference
from neocloud.engines.manifest.base import (
    Document,
    Manifest,
    ManifestError,
    as_mapping,
    check_choice,
    check_name,
    encode,
    fingerprint,
    quantity,
)
from neocloud.engines.manifest.container import (
    GPU,
    Command,
    Container,
    ContainerPort,
    FieldReference,
    HttpGet,
    KeyReference,
    LinuxCapabilities,
    Mount,
    ObjectReference,
    Probe,
    Resources,
    SeccompProfile,
    SecurityContext,
    TcpSocket,
    Variable,
    VariableSource,
    VariablesSource,
    limits,
    variables,
)
from neocloud.engines.manifest.network_spec import Interface, VirtualNetwork
from neocloud.engines.manifest.objects import ConfigMap, Namespace, NetworkPolicy, Secret, Service
from neocloud.engines.manifest.pod import (
    ATTACHED_ANNOTATION,
    ATTACHED_VOLUME,
    CLAIMS_ANNOTATION,
    Pod,
    PodSecurityContext,
    Sysctl,
)
from neocloud.engines.manifest.volume import (
    CLAIM,
    DISK,
    MACHINE_IMAGE,
    ROOT_FILESYSTEM,
    SHARED,
    ClaimSource,
    ConfigMapSource,
    DataSource,
    EmptyDir,
    HostPath,
    KeyToPath,
    SecretSource,
    Volume,
    VolumeClaim,
)

_TYPES: Sequence[type[Manifest]] = (
    Namespace,
    VirtualNetwork,
    NetworkPolicy,
    ConfigMap,
    Secret,
    VolumeClaim,
    Service,
    Pod,
)
"""Every kind that an engine takes, in the order in which it is applied."""
KINDS = tuple(each.kind for each in _TYPES)


def read_manifest(document: object) -> Manifest:
    """Read a manifest as Kubernetes writes it. Raises ManifestError naming the first field that is wrong."""
    fields = as_mapping(document, "A manifest")
    kind = fields.get("kind")
    check_choice(kind, KINDS, "kind")
    return _TYPES[KINDS.index(str(kind))].from_dict(fields)


def check_reference(reference: Reference) -> None:
    check_choice(reference.kind, KINDS, "kind")
    check_name(reference.namespace, "namespace", label=True)
    check_name(reference.name, f"{reference.kind} name")


def in_order(manifests: Sequence[Manifest]) -> list[Manifest]:
    """The manifests by kind, Namespace first and Pod last; otherwise as given.

    Raises ManifestError when an object is given twice.
    """
    known: set[Reference] = set()
    for manifest in manifests:
        if manifest.reference in known:
            raise ManifestError(f"{manifest.kind} {manifest.name} is given twice.")
        known.add(manifest.reference)
    return sorted(manifests, key=lambda manifest: KINDS.index(manifest.kind))


__all__ = [
    "ATTACHED_ANNOTATION",
    "ATTACHED_VOLUME",
    "CLAIM",
    "CLAIMS_ANNOTATION",
    "DISK",
    "GPU",
    "KINDS",
    "MACHINE_IMAGE",
    "ROOT_FILESYSTEM",
    "SHARED",
    "ClaimSource",
    "Command",
    "ConfigMap",
    "ConfigMapSource",
    "Container",
    "ContainerPort",
    "DataSource",
    "Document",
    "EmptyDir",
    "FieldReference",
    "HostPath",
    "HttpGet",
    "Interface",
    "KeyReference",
    "KeyToPath",
    "LinuxCapabilities",
    "Manifest",
    "ManifestError",
    "Mount",
    "Namespace",
    "NetworkPolicy",
    "ObjectReference",
    "Pod",
    "PodSecurityContext",
    "Probe",
    "Resources",
    "SeccompProfile",
    "Secret",
    "SecretSource",
    "SecurityContext",
    "Service",
    "Sysctl",
    "TcpSocket",
    "Variable",
    "VariableSource",
    "VariablesSource",
    "VirtualNetwork",
    "Volume",
    "VolumeClaim",
    "check_reference",
    "encode",
    "fingerprint",
    "in_order",
    "limits",
    "quantity",
    "read_manifest",
    "variables",
]
