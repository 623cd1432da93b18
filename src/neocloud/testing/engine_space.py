# pyright: standard
"""The engine under test for the conformance suite, and a namespace in it with calls to create and query
things."""

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from neocloud.engines.base import (
    Engine,
    EngineError,
    ExecResult,
    KubernetesObject,
    ObservedPod,
    PlatformService,
    Reference,
)
from neocloud.engines.images import ImagePull, ImageSettings
from neocloud.engines.manifest import NetworkPolicy, read_manifest
from neocloud.testing.waiting import until

PATIENCE_SECONDS = 60.0
IDLE = ["sleep", "3600"]
_numbers = itertools.count(1)

Seen = TypeVar("Seen")
SERVE = ["httpd", "-f", "-p", "8080"]
OPEN_RULES = [
    {"direction": direction, "access": "allow", "protocol": "any"} for direction in ("ingress", "egress")
]


def on_network(pod: KubernetesObject, network: str, address: str, **changes: Any) -> KubernetesObject:
    """The pod with its interface on the subnet of `Space.network`."""
    card = int(address.rsplit(".", 1)[1])
    fields = {
        "network": network,
        "subnet": "subnet",
        "address": address,
        "mac": f"52:54:00:00:00:{card:02x}",
        "securityGroups": ["group"],
        **changes,
    }
    metadata = {**pod["metadata"], "annotations": {"neocloud.dev/interface": json.dumps(fields)}}
    return {**pod, "metadata": metadata}


class Space:
    """A namespace to test in, with short calls to create and query things."""

    def __init__(self, engine: Engine, image: str) -> None:
        self.engine = engine
        self.image = image
        self.name = f"conformance-{next(_numbers)}"

    def manifest(self, kind: str, name: str, **fields: Any) -> KubernetesObject:
        metadata = {"name": name, "namespace": self.name}
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}

    def namespace(self) -> KubernetesObject:
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}

    def pod(
        self,
        name: str,
        command: list[str] | None = None,
        *,
        container: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> KubernetesObject:
        main = {
            "name": "main",
            "image": self.image,
            "command": command or IDLE,
            **(container or {}),
        }
        body = {"terminationGracePeriodSeconds": 1, "containers": [main], **spec}
        manifest = self.manifest("Pod", name, spec=body)
        manifest["metadata"]["labels"] = dict(labels or {})
        return manifest

    def claim(self, name: str, size: str = "1Gi") -> KubernetesObject:
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
        return self.manifest("PersistentVolumeClaim", name, spec=spec)

    def reference(self, kind: str, name: str) -> Reference:
        return Reference(kind, self.name, name)

    @property
    def whole(self) -> Reference:
        """Remove the namespace and everything in it."""
        return Reference("Namespace", self.name, self.name)

    def policy(self, *platform_services: str) -> KubernetesObject:
        """Let the pods of the namespace reach these platform services."""
        policy = NetworkPolicy(name="policy", namespace=self.name, platform_services=platform_services)
        return policy.to_dict()

    def network(self, name: str, number: int, *rules: Mapping[str, Any]) -> KubernetesObject:
        """One subnet, 10.210.NUMBER.0/24, and one security group, `group`."""
        subnet = {"name": "subnet", "cidrs": [f"10.210.{number}.0/24"], "gateway": f"10.210.{number}.1"}
        groups = [{"name": "group", "rules": list(rules)}]
        spec = {"subnets": [subnet], "securityGroups": groups, "domain": f"{name}.internal"}
        return self.manifest("VirtualNetwork", name, spec=spec)

    async def apply(self, *documents: KubernetesObject) -> bool:
        """Read the documents, of which a test may have changed any field, and apply them."""
        return await self.engine.apply([read_manifest(each) for each in documents])

    async def remove(self, kind: str, name: str) -> None:
        await self.engine.remove([self.reference(kind, name)])

    async def seen(self, name: str) -> ObservedPod | None:
        return (await self.engine.observe(self.name)).pod(name)

    async def until(self, name: str, wanted: Callable[[ObservedPod], bool]) -> ObservedPod:
        pod = await until(
            lambda: self.seen(name),
            f"pod {name}",
            holds=lambda pod: pod is not None and wanted(pod),
            seconds=PATIENCE_SECONDS,
        )
        assert pod is not None
        return pod

    async def run(self, pod: str, *command: str, stdin: bytes = b"", **options: Any) -> ExecResult:
        return await self.engine.exec(self.reference("Pod", pod), command, stdin=stdin, **options)

    async def read(self, pod: str, path: str) -> bytes:
        return (await self.run(pod, "cat", path)).stdout

    async def lines(self, pod: str, **options: Any) -> list[str]:
        return [line async for line in self.engine.logs(self.reference("Pod", pod), **options)]

    async def kill(self, pod: str) -> None:
        """End the pod's first process from inside; the engine may see the command end with it."""
        with contextlib.suppress(EngineError):
            await self.run(pod, "kill", "-TERM", "1")

    async def reaches(self, pod: str, address: str) -> bool:
        result = await self.run(pod, "nc", "-w", "1", address, "8080", stdin=b"GET / HTTP/1.0\r\n\r\n")
        return result.exit_code == 0


def mounted(volume: Mapping[str, Any], path: str, **mount: Any) -> dict[str, Any]:
    """Return arguments for `Space.pod` that mount one volume."""
    return {
        "volumes": [{"name": "files", **volume}],
        "container": {"volumeMounts": [{"name": "files", "mountPath": path, **mount}]},
    }


class Bench(Protocol):
    """The engine under test and the details that only its own test knows."""

    engine: Engine
    image: str
    """An image with busybox."""
    platform_service: PlatformService
    """One that answers, at port 8080 as pods see it."""
    root_filesystem: str
    """The name of a root file system with busybox."""

    def reopened(self) -> Engine:
        """A new engine object on the same state, as after a restart of the server."""
        ...

    def pull(self, word: str) -> ImagePull:
        """Return a pull of a busybox image that runs `echo WORD`. Each word has another image."""
        ...


def image_settings(word: str) -> ImageSettings:
    """Return what the image of `Bench.pull` says."""
    return ImageSettings(("echo",), (word,), ("PATH=/bin", f"WORD={word}"), "root", "/tmp")  # nosec B108
