"""A fake world as plain data that JSON can hold, and back.

Reading it builds only what is listed here; a file that somebody else has written cannot run anything.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from neocloud.engines.base import Reference
from neocloud.engines.fake.by_namespace import ByNamespace
from neocloud.engines.fake.world import ContainerState, FakeContainer, FakePod, FakeWorld, Files
from neocloud.engines.interface import member_of

Document = dict[str, Any]


def document_of(world: FakeWorld) -> Document:
    return {
        "namespaces": world.namespaces,
        "objects": [[_key(reference), manifest] for reference, manifest in world.objects.items()],
        "pods": [[_key(reference), _pod(pod)] for reference, pod in world.pods.items()],
        "volumes": [[_key(reference), _files(files)] for reference, files in world.volumes.items()],
        "addresses": [[_key(reference), address] for reference, address in world.addresses.items()],
        "holders": {what: _key(reference) for what, reference in world.holders.items()},
        "ticks": world.ticks,
        "numbered": world.numbered,
    }


def fill_world(world: FakeWorld, document: Mapping[str, Any]) -> None:
    """Put what the document says into a new world. Raises KeyError, TypeError or ValueError for a document
    that is no world's."""
    world.namespaces.update(document["namespaces"])
    _fill(world.objects, [(key, manifest) for key, manifest in document["objects"]])
    _fill(world.pods, [(key, _pod_from(pod)) for key, pod in document["pods"]])
    _fill(world.volumes, [(key, _files_from(files)) for key, files in document["volumes"]])
    _fill(world.addresses, document["addresses"])
    world.holders.update({what: Reference(*key) for what, key in document["holders"].items()})
    world.ticks, world.numbered = int(document["ticks"]), int(document["numbered"])


def _fill(target: ByNamespace[Any], pairs: Any) -> None:
    for key, value in pairs:
        target[Reference(*key)] = value


def _key(reference: Reference) -> list[str]:
    return [reference.kind, reference.namespace, reference.name]


def _pod(pod: FakePod) -> Document:
    return {
        "manifest": pod.manifest,
        "ip": pod.ip,
        "containers": [_container(container) for container in pod.containers],
        "scratch": {name: _files(files) for name, files in pod.scratch.items()},
    }


def _pod_from(document: Mapping[str, Any]) -> FakePod:
    return FakePod(
        document["manifest"],
        document["ip"],
        [_container_from(each) for each in document["containers"]],
        {name: _files_from(files) for name, files in document["scratch"].items()},
        member_of(document["manifest"]),
    )


def _container(container: FakeContainer) -> Document:
    return {
        "manifest": container.manifest,
        "state": container.state.value,
        "exit_code": container.exit_code,
        "restart_count": container.restart_count,
        "started_at": container.started_at.isoformat() if container.started_at else None,
        "logs": container.logs,
        "files": _files(container.files),
        "ports": sorted(container.ports),
    }


def _container_from(document: Mapping[str, Any]) -> FakeContainer:
    started_at = document["started_at"]
    return FakeContainer(
        document["manifest"],
        ContainerState(document["state"]),
        int(document["exit_code"]),
        int(document["restart_count"]),
        datetime.fromisoformat(started_at) if started_at else None,
        list(document["logs"]),
        _files_from(document["files"]),
        set(document["ports"]),
    )


def _files(files: Files) -> dict[str, str]:
    return {path: base64.b64encode(content).decode() for path, content in files.items()}


def _files_from(document: Mapping[str, str]) -> Files:
    return {path: base64.b64decode(content) for path, content in document.items()}
