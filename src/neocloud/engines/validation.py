"""The one check that every engine makes before it touches anything. Pure."""

from collections.abc import Sequence

from neocloud.engines.base import EngineError, KubernetesObject, Reference
from neocloud.engines.data_source import data_source_of
from neocloud.engines.interface import interface_of
from neocloud.engines.manifests import (
    check_network_policy,
    checked_reference,
    file_contents,
)
from neocloud.engines.pod_fields import check_pod
from neocloud.engines.pod_references import foreign_claims
from neocloud.engines.virtual_network import parse_virtual_network


def checked(objects: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    """The same objects; EngineError when any of them cannot be taken as it is."""
    seen: set[Reference] = set()
    for manifest in objects:
        if not isinstance(manifest, dict):
            raise EngineError(f"An object must be a mapping, not {type(manifest).__name__}.")
        reference = checked_reference(manifest)
        if reference in seen:
            raise EngineError(f"{reference.kind} {reference.name} is given twice.")
        seen.add(reference)
        if reference.kind == "Pod":
            check_pod(manifest)
            interface_of(manifest)
            foreign_claims(manifest)
        elif reference.kind == "VirtualNetwork":
            parse_virtual_network(manifest)
        elif reference.kind == "PersistentVolumeClaim":
            data_source_of(manifest)
        elif reference.kind == "NetworkPolicy":
            check_network_policy(manifest)
        elif reference.kind in ("ConfigMap", "Secret"):
            file_contents(manifest)
    return list(objects)
