"""A control plane in this process with a real object gateway: images in registries, for workloads."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from neocloud.services.registry.image_documents import architecture
from tests.fast.object_gateway.oci.client import INDEX, MANIFEST, digest_of, manifest
from tests.fast.services.ai.cloud import AiCloud, cloud_in_process
from tests.fast.services.storage.cloud import AccountCloud
from tests.fast.services.storage.served import object_gateway

REGISTRIES = "nebius.registry.v1.RegistryService"
SMALL: dict[str, Any] = {"platform": "cpu-local", "preset": "1vcpu-1gb"}
_NUMBERS = itertools.count(1)


@dataclass
class RegistryCloud(AiCloud, AccountCloud):
    url: str = field(kw_only=True)
    registry_id: str = field(default="", kw_only=True)
    fqdn: str = field(default="", kw_only=True)
    """How the names of images of its registry begin."""
    sizes: dict[str, int] = field(default_factory=dict[str, int], kw_only=True)
    """The sizes of the manifests that were pushed, by digest."""

    async def registry(self, name: str = "team") -> None:
        """Make its registry, and wait until it is ready."""
        metadata = {"parent_id": self.project_id, "name": name}
        made = await self.call(f"{REGISTRIES}/Create", metadata=metadata, spec={})
        ready = await self.until(made.resource_id, "ACTIVE")
        self.registry_id, self.fqdn = made.resource_id, ready.status.registry_fqdn

    async def push(self, reference: str, content: bytes, kind: str, *blobs: bytes) -> str:
        """Push a manifest with what it names to the repository `tool`; return its digest."""
        name = f"{self.fqdn.partition('/')[2]}/tool"
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=20) as http:
            params = {"scope": f"repository:{name}:*"}
            token = (await http.get("/v2/token", params=params, auth=("iam", self.token))).json()["token"]
            headers = {"Authorization": f"Bearer {token}"}
            for blob in blobs:
                at = {"digest": digest_of(blob)}
                done = await http.post(f"/v2/{name}/blobs/uploads/", params=at, content=blob, headers=headers)
                assert done.status_code == 201, done.text
            path, typed = f"/v2/{name}/manifests/{reference}", {**headers, "Content-Type": kind}
            done = await http.put(path, content=content, headers=typed)
            assert done.status_code == 201, done.text
        self.sizes[digest_of(content)] = len(content)
        return digest_of(content)

    async def push_image(self, tag: str, said: str = "hello", **configuration: Any) -> str:
        """Push an image of one layer, which says something; return its digest."""
        config = json.dumps(
            {
                "os": "linux",
                "architecture": architecture(),
                "config": {"Cmd": ["echo", said], "Env": ["WORD=said"]},
                **configuration,
            }
        ).encode()
        layer = f"layer of {said}".encode()
        return await self.push(tag, manifest(config, layer), MANIFEST, config, layer)

    async def push_index(self, tag: str, *platforms: tuple[str, str]) -> None:
        """Push an index of images that are there, by architecture and digest."""
        described = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": self.sizes[digest],
                "platform": {"os": "linux", "architecture": kind},
            }
            for kind, digest in platforms
        ]
        content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": described}
        await self.push(tag, json.dumps(content).encode(), INDEX)

    async def job(self, image: str, token: str = "", **spec: Any) -> str:
        """Return the id of a new job that runs an image of the registry."""
        disk = {"type": "NETWORK_SSD", "size_bytes": 1 << 30}
        wanted = {"image": f"{self.fqdn}/tool{image}", "disk": disk, **SMALL, **spec}
        metadata = {"parent_id": self.project_id, "name": f"job-{next(_NUMBERS)}"}
        caller = replace(self, token=token or self.token)
        made = await caller.call("nebius.ai.v1.JobService/Create", metadata=metadata, spec=wanted)
        return made.resource_id

    async def details(self, resource_id: str, *states: str) -> tuple[str, str]:
        details = (await self.until(resource_id, *states)).status.state_details
        return details.code, details.message


@asynccontextmanager
async def registry_cloud(home: Path, engine: Any = None, **settings: Any) -> AsyncIterator[RegistryCloud]:
    """May be entered again on the same home, as after a restart."""
    async with (
        cloud_in_process(home, engine, **settings) as plain,
        object_gateway(home, plain.running.server.addresses.grpc) as url,
    ):
        yield RegistryCloud(**vars(plain), url=url)
