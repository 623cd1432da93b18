"""Which other objects a Pod needs. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from neocloud.engines.base import KubernetesObject, Reference

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
    return {Reference(kind, namespace, name) for kind, name, optional in needs if not optional}


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
