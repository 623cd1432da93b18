"""A real object gateway in the test's process, for a control plane there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from neocloud.core.clock import SystemClock
from neocloud.data_plane.gateway_keys import object_gateway_folder, object_gateway_key_file
from neocloud.data_plane.http.protocol import ClientProtocol
from neocloud.data_plane.process import listen, web_server
from neocloud.object_gateway.composition import running_objects
from neocloud.object_gateway.control_plane import GrpcControlPlane
from neocloud.object_gateway.s3.protocol import s3_connections
from neocloud.object_gateway.settings import ObjectsSettings
from neocloud.services.iam.access.tokens import token_issuer
from tests.fast.services.storage.cloud import AccessKey, AccountCloud

KEY = bytes(range(32))
REGION = "eu-north1"


@asynccontextmanager
async def object_gateway(home: Path, api: str) -> AsyncIterator[str]:
    """Yield its URL, once it serves."""
    settings = ObjectsSettings(home=home, api=api, port=0)
    link = GrpcControlPlane(api, object_gateway_key_file(home))
    listener = listen("127.0.0.1", 0, settings.write_seconds)
    endpoint = "{}:{}".format(*listener.getsockname())
    folder = object_gateway_folder(home)
    try:
        async with running_objects(folder, KEY, link, SystemClock(), settings.s3, endpoint) as app:
            web = web_server(app, ClientProtocol, settings, s3_connections(settings))
            serving = asyncio.create_task(web.serve(sockets=[listener]))
            yield f"http://{endpoint}"
            web.end()
            await serving
    finally:
        await link.close()


class ServedCloud(AccountCloud):
    """A cloud whose buckets hold objects."""

    s3_url: str

    @cached_property
    def _clients(self) -> dict[tuple[str, str], Any]:
        """Return the clients by endpoint and key: a client takes longer to make than an object."""
        return {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run an object gateway of this cloud."""
        async with object_gateway(self.home, self.running.server.addresses.grpc) as self.s3_url:
            yield

    async def bucket(self, name: str, project_id: str = "", **spec: Any) -> str:
        """Return the id of a new bucket that is ready."""
        metadata = {"parent_id": project_id or self.project_id, "name": name}
        operation = await self.call("nebius.storage.v1.BucketService/Create", metadata=metadata, spec=spec)
        await self.until(operation.resource_id, "ACTIVE")
        return operation.resource_id

    def s3(self, aws_id: str, secret: str) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.s3_url,
            region_name=REGION,
            aws_access_key_id=aws_id,
            aws_secret_access_key=secret,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
        )

    async def put(self, key: AccessKey, bucket: str, name: str, body: bytes) -> None:
        at = (self.s3_url, key.id)
        if at not in self._clients:
            self._clients[at] = self.s3(key.aws_id, key.secret)
        s3 = self._clients[at]
        await asyncio.to_thread(s3.put_object, Bucket=bucket, Key=name, Body=body)

    async def token_of(self, account_id: str) -> str:
        issue = token_issuer(self.running.store, SystemClock())
        token, _ = await issue(account_id, timedelta(hours=1))
        return token
