"""Environment variables and $(NAME) references of a container, as Kubernetes defines them.

Pure. Values taken from Secrets end up in Podman's container record on disk (readable by root only); mount a
Secret instead where that matters.
"""

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address

from neocloud.engines.base import EngineError
from neocloud.engines.manifest import Container, Pod, VariableSource

Contents = Mapping[str, Mapping[str, bytes]]
"""Files by object name and key."""

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
            value = _looked_up(variable.value_from, pod, address, config_maps, secrets)
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


def expand_all(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    return [expand(word, values) for word in words]


def _looked_up(
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
