"""Environment variables and $(NAME) references of a container, as Kubernetes defines them.

Pure. Values taken from Secrets end up in Podman's container record on disk (readable by root only); mount a
Secret instead where that matters.
"""

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from typing import Any

from neocloud.engines.base import EngineError, KubernetesObject

Contents = Mapping[str, Mapping[str, bytes]]
"""Files by object name and key."""

_REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")


def container_environment(
    manifest: KubernetesObject,
    container: Mapping[str, Any],
    address: IPv4Address,
    config_maps: Contents,
    secrets: Contents,
) -> dict[str, str]:
    values: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        reference = source.get("configMapRef") or source.get("secretRef") or {}
        objects = config_maps if "configMapRef" in source else secrets
        for key, content in objects[reference["name"]].items():
            values[source.get("prefix", "") + key] = content.decode()
    for variable in container.get("env") or []:
        if "valueFrom" in variable:
            value = _looked_up(variable["valueFrom"], manifest, address, config_maps, secrets)
        else:
            value = expand(str(variable.get("value", "")), values)
        values[variable["name"]] = value
    return values


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) where NAME is known; $$ stands for one dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return values.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def expand_all(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    return [expand(word, values) for word in words]


def _looked_up(
    source: Mapping[str, Any],
    manifest: KubernetesObject,
    address: IPv4Address,
    config_maps: Contents,
    secrets: Contents,
) -> str:
    if "fieldRef" in source:
        return _field(source["fieldRef"].get("fieldPath", ""), manifest, address)
    for field, objects in (("secretKeyRef", secrets), ("configMapKeyRef", config_maps)):
        if field in source:
            reference = source[field]
            contents = objects.get(reference["name"], {})
            if reference["key"] in contents:
                return contents[reference["key"]].decode()
            if reference.get("optional"):
                return ""
            raise EngineError(
                f"Pod {manifest['metadata']['name']} needs key {reference['key']!r} of "
                f"{reference['name']}, which is not there."
            )
    raise EngineError(
        f"Pod {manifest['metadata']['name']}: a variable may come from secretKeyRef, "
        f"configMapKeyRef or fieldRef, not from {', '.join(source) or 'nothing'}."
    )


def _field(path: str, manifest: KubernetesObject, address: IPv4Address) -> str:
    fields = {
        "metadata.name": manifest["metadata"]["name"],
        "metadata.namespace": manifest["metadata"]["namespace"],
        "status.podIP": str(address),
    }
    if path not in fields:
        raise EngineError(
            f"Pod {manifest['metadata']['name']}: fieldRef {path!r} is not supported; "
            f"use one of {', '.join(fields)}."
        )
    return fields[path]
