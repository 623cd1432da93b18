"""A fake world as plain data that JSON can hold, and back.

Reading it builds only what is listed here; a file that somebody else has written cannot run anything.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from neocloud.engines.base import Reference
from neocloud.engines.fake.world import (
    ByNamespace,
    ContainerState,
    FakeContainer,
    FakePod,
    FakeWorld,
    Files,
    Value,
)
from neocloud.engines.images import ImageSettings
from neocloud.engines.manifest import Container, Pod, read_manifest

Document = dict[str, Any]


def document_of(world: FakeWorld) -> Document:
    return {
        "namespaces": world.namespaces,
        "objects": [[_key(reference), found.to_dict()] for reference, found in world.objects.items()],
        "pods": [[_key(reference), _pod(pod)] for reference, pod in world.pods.items()],
        "volumes": [[_key(reference), _files(files)] for reference, files in world.volumes.items()],
        "addresses": [[_key(reference), address] for reference, address in world.addresses.items()],
        "holders": {what: _key(reference) for what, reference in world.holders.items()},
        "images": {name: asdict(settings) for name, settings in world.images.items()},
        "ticks": world.ticks,
        "numbered": world.numbered,
    }


def fill_world(world: FakeWorld, document: Document) -> None:
    """Fill a new world from a document. Raises KeyError, TypeError or ValueError for a document
    that is not a world's."""
    world.namespaces.update(document["namespaces"])
    _fill(world.objects, [(key, read_manifest(found)) for key, found in document["objects"]])
    _fill(world.pods, [(key, _pod_from(pod)) for key, pod in document["pods"]])
    _fill(world.volumes, [(key, _files_from(files)) for key, files in document["volumes"]])
    _fill(world.addresses, document["addresses"])
    world.holders.update({what: Reference(*key) for what, key in document["holders"].items()})
    images: dict[str, Any] = document.get("images", {})  # worlds of earlier versions have none
    world.images.update({name: ImageSettings(**settings) for name, settings in images.items()})
    world.ticks, world.numbered = int(document["ticks"]), int(document["numbered"])


def _fill(target: ByNamespace[Value], pairs: Iterable[tuple[Sequence[str], Value]]) -> None:
    for key, value in pairs:
        target[Reference(*key)] = value


def _key(reference: Reference) -> list[str]:
    return [reference.kind, reference.namespace, reference.name]


def _pod(pod: FakePod) -> Document:
    manifest = pod.manifest.to_dict()
    written = zip(pod.containers, manifest["spec"]["containers"], strict=True)
    return {
        "manifest": manifest,
        "ip": pod.ip,
        "containers": [_container(container, each) for container, each in written],
        "scratch": {name: _files(files) for name, files in pod.scratch.items()},
    }


def _pod_from(document: Document) -> FakePod:
    manifest = Pod.from_dict(document["manifest"])
    written = zip(manifest.containers, document["containers"], strict=True)
    return FakePod(
        manifest,
        document["ip"],
        [_container_from(container, each) for container, each in written],
        {name: _files_from(files) for name, files in document["scratch"].items()},
        manifest.member,
    )


def _container(container: FakeContainer, manifest: Document) -> Document:
    return {
        "manifest": manifest,
        "state": container.state.value,
        "exit_code": container.exit_code,
        "restart_count": container.restart_count,
        "started_at": container.started_at.isoformat() if container.started_at else None,
        "logs": container.logs,
        "files": _files(container.files),
        "ports": sorted(container.ports),
    }


def _container_from(manifest: Container, document: Document) -> FakeContainer:
    started_at = document["started_at"]
    return FakeContainer(
        manifest,
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
