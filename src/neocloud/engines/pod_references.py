"""Which other objects a Pod needs. Pure.

A volume's claim lies in the pod's namespace, unless the annotation `neocloud.dev/claims` names another:
`{"<claim>": "<namespace>"}`. That is how disks move between machines, and how filesystems are shared.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from neocloud.engines.base import EngineError, KubernetesObject, Reference
from neocloud.engines.manifests import check_name

CLAIMS_ANNOTATION = "neocloud.dev/claims"
CLAIM = "PersistentVolumeClaim"

_VOLUMES = (
    ("configMap", "ConfigMap", "name"),
    ("secret", "Secret", "secretName"),
    ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
)
_VARIABLES = (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret"))
_VARIABLE_SETS = (("configMapRef", "ConfigMap"), ("secretRef", "Secret"))


def environment_objects(manifest: KubernetesObject, kind: str) -> set[str]:
    """Names of the ConfigMaps or Secrets that its environment takes values from."""
    return {name for found, name, _ in _environment(manifest) if found == kind}


def required_objects(manifest: KubernetesObject) -> set[Reference]:
    """What must exist before the pod can start."""
    namespace = manifest["metadata"]["namespace"]
    needs = [*_environment(manifest), *_mounted(manifest)]
    required = {Reference(kind, namespace, name) for kind, name, optional in needs if not optional}
    claims = {claim for claim in required if claim.kind == CLAIM}
    return required - claims | {claim_reference(manifest, claim.name) for claim in claims}


def claim_reference(manifest: KubernetesObject, claim: str) -> Reference:
    """Where a claim is that a volume of this pod names."""
    metadata = manifest["metadata"]
    return Reference(CLAIM, foreign_claims(manifest).get(claim, metadata["namespace"]), claim)


def mounted_claims(manifest: KubernetesObject) -> set[Reference]:
    return {claim_reference(manifest, name) for kind, name, _ in _mounted(manifest) if kind == CLAIM}


def foreign_claims(manifest: KubernetesObject) -> Mapping[str, str]:
    """Claim to namespace. Raises EngineError when the annotation cannot be used."""
    metadata = manifest["metadata"]
    text = (metadata.get("annotations") or {}).get(CLAIMS_ANNOTATION)
    if text is None:
        return {}
    where = f"Pod {metadata['name']}: annotation {CLAIMS_ANNOTATION}"
    try:
        found = json.loads(text)
    except (ValueError, TypeError) as error:
        raise EngineError(f"{where} is not valid JSON: {error}.") from error
    if not isinstance(found, dict):
        raise EngineError(f"{where} must be a JSON object of claims and namespaces.")
    for claim, namespace in found.items():
        check_name(claim, f"claim in {where}")
        check_name(namespace, f"namespace in {where}", label=True)
    return found


def _environment(manifest: KubernetesObject) -> Iterator[tuple[str, str, bool]]:
    for container in manifest["spec"]["containers"]:
        for source in container.get("envFrom") or []:
            yield from _found(source, _VARIABLE_SETS)
        for variable in container.get("env") or []:
            yield from _found(variable.get("valueFrom") or {}, _VARIABLES)


def _found(source: Mapping[str, Any], fields: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str, bool]]:
    for field, kind in fields:
        if field in source:
            yield kind, source[field]["name"], bool(source[field].get("optional"))


def _mounted(manifest: KubernetesObject) -> Iterator[tuple[str, str, bool]]:
    for volume in manifest["spec"].get("volumes") or []:
        for field, kind, name_field in _VOLUMES:
            if field in volume:
                yield kind, volume[field][name_field], bool(volume[field].get("optional"))
