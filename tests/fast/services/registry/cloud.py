"""A control plane and a real object gateway in this process, without a socket between gateway and clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.core.clock import SystemClock
from neocloud.data_plane.gateway_keys import object_gateway_folder, object_gateway_key_file
from neocloud.object_gateway.composition import running_objects
from neocloud.object_gateway.control_plane import GrpcControlPlane
from neocloud.object_gateway.gateway import Gateway
from neocloud.object_gateway.s3.settings import S3Settings
from neocloud.object_gateway.work import bucket_follower
from tests import control_plane
from tests.fast.object_gateway.oci.client import MANIFEST, digest_of, manifest
from tests.fast.services.storage.cloud import AccountCloud

ENDPOINT = "127.0.0.1:8902"
KEY = bytes(range(32))
Credentials = tuple[str, str]


@dataclass
class RegistryCloud(AccountCloud):
    api = "nebius.registry.v1"

    gateway: Gateway = field(kw_only=True)
    http: httpx.AsyncClient = field(kw_only=True)

    async def registry(self, name: str = "team") -> str:
        """Return the id of a new registry that is ready."""
        registry_id = await self.create("Registry", name, {})
        await self.until(registry_id, "ACTIVE")
        return registry_id

    @property
    def iam(self) -> Credentials:
        return "iam", self.token

    async def access(self, name: str, as_whom: Credentials) -> httpx.Response:
        params = {"scope": f"repository:{name}:*"}
        return await self.http.get("/v2/token", params=params, auth=as_whom)

    async def ask(
        self, method: str, name: str, rest: str, as_whom: Credentials | None = None, **options: Any
    ) -> httpx.Response:
        """Call the registry as the caller of the cloud, or with other credentials."""
        answer = await self.access(name, as_whom or self.iam)
        assert answer.status_code == 200, answer.text
        headers = {"Authorization": f"Bearer {answer.json()['token']}", **options.pop("headers", {})}
        return await self.http.request(method, f"/v2/{name}/{rest}", headers=headers, **options)

    async def push(self, name: str, tag: str, as_whom: Credentials | None = None) -> bytes:
        """Push an image of one layer, and return its manifest."""
        config, layer = json.dumps({"made": tag}).encode(), f"layer of {tag}".encode()
        for each in (config, layer):
            params = {"digest": digest_of(each)}
            answer = await self.ask("POST", name, "blobs/uploads/", as_whom, params=params, content=each)
            assert answer.status_code == 201, answer.text
        content = manifest(config, layer)
        answer = await self.put(name, tag, content, MANIFEST, as_whom)
        assert answer.status_code == 201, answer.text
        return content

    async def refused_by_gateway(self, url: str, headers: dict[str, str]) -> httpx.Response:
        """Return the refusal of a post, once the gateway knows that access has changed."""
        async with asyncio.timeout(control_plane.DEADLINE_SECONDS):
            while (answer := await self.http.post(url, headers=headers)).status_code == 202:
                await asyncio.sleep(0.02)
        return answer

    async def put(
        self, name: str, tag: str, content: bytes, kind: str, as_whom: Credentials | None = None
    ) -> httpx.Response:
        headers = {"Content-Type": kind}
        return await self.ask("PUT", name, f"manifests/{tag}", as_whom, content=content, headers=headers)


def short(registry_id: str) -> str:
    return registry_id.partition("-")[2]


@asynccontextmanager
async def often_reported() -> AsyncIterator[None]:
    """Let numbers of images be reported soon after they changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_follower, "REPORT_SECONDS", 0.1)
        yield


@asynccontextmanager
async def cloud_in_process(home: Path, **settings: Any) -> AsyncIterator[RegistryCloud]:
    """May be entered again on the same home, as after a restart."""
    async with control_plane.cloud_in_process(home, **settings) as cloud:
        key_file = object_gateway_key_file(home)
        calls = GrpcControlPlane(cloud.running.server.addresses.grpc, key_file)
        folder = object_gateway_folder(home)
        try:
            async with (
                often_reported(),
                running_objects(folder, KEY, calls, SystemClock(), S3Settings(), ENDPOINT) as gateway,
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(gateway), base_url=f"http://{ENDPOINT}"
                ) as http,
            ):
                yield RegistryCloud(**vars(cloud), gateway=gateway, http=http)
        finally:
            await calls.close()
