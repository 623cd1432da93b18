"""A stand-in for the object gateway: follows the list of buckets and reports them, and keeps only numbers.

For tests of the control plane, which need no object.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from neocloud.core import contract
from neocloud.data_plane.gateway_keys import KEY_HEADER, object_gateway_key_file
from neocloud.messages.nebius.storage.v1 import BucketCounters
from neocloud.messages.neocloud.storage.v1 import (
    BucketReport,
    GatewayBucket,
    ListGatewayBucketsRequest,
    ListGatewayBucketsResponse,
    ReportBucketsRequest,
)

SERVICE = "neocloud.storage.v1.ObjectGatewayService"
ENDPOINT = "127.0.0.1:8902"
_HIDE, _PURGE = GatewayBucket.Mode.Value("HIDE"), GatewayBucket.Mode.Value("PURGE")
_CALL_SECONDS, _WAIT_SECONDS = 30.0, 20


@dataclass
class FakeObjectGateway:
    channel: grpc.aio.Channel
    key: str
    bytes_in: dict[str, int] = field(default_factory=dict[str, int])
    """The size of the one object in a bucket, by the name of the bucket."""
    protected: set[str] = field(default_factory=set[str])
    """The names of buckets whose object is under object lock."""
    known: ListGatewayBucketsResponse = field(default_factory=ListGatewayBucketsResponse)

    async def call(self, verb: str, request: Any, *, key: str | None = None) -> Any:
        rpc = contract.method(f"{SERVICE}/{verb}")
        unary = self.channel.unary_unary(
            f"/{rpc.path}",
            request_serializer=rpc.input.SerializeToString,
            response_deserializer=rpc.output.FromString,
        )
        metadata = ((KEY_HEADER, self.key if key is None else key),)
        return await unary(request, metadata=metadata, timeout=_CALL_SECONDS)

    async def follow(self) -> None:
        """Apply what is listed, and report it, again and again."""
        while True:
            request = ListGatewayBucketsRequest(
                version=self.known.version,
                access_version=self.known.access_version,
                wait_seconds=_WAIT_SECONDS,
            )
            self.known = await self.call("ListBuckets", request)
            await self.report()

    async def put(self, bucket: str, size: int) -> None:
        """Have one object of this size in a bucket; 0: none."""
        self.bytes_in[bucket] = size
        await self.report()

    async def report(self) -> None:
        request = ReportBucketsRequest(is_complete=True, endpoint=ENDPOINT)
        request.buckets.extend(self._report(each) for each in self.known.buckets)
        await self.call("ReportBuckets", request)

    def _report(self, bucket: GatewayBucket) -> BucketReport:
        size = self.bytes_in.get(bucket.name, 0)
        if bucket.mode == _PURGE:
            size = self.bytes_in[bucket.name] = 0
        report = BucketReport(
            id=bucket.id,
            name=bucket.name,
            applied_generation=bucket.generation,
            applied=bucket.mode,
            is_empty=not size,
            is_purged=bucket.mode == _PURGE,
            is_protected=bucket.mode == _HIDE and bucket.name in self.protected,
        )
        counters = BucketCounters(storage_class="STANDARD")
        counters.counters.simple_objects_quantity = int(size > 0)
        counters.counters.simple_objects_size = size
        report.counters.append(counters)
        return report


@asynccontextmanager
async def object_gateway(address: str, home: Path) -> AsyncGenerator[FakeObjectGateway]:
    """Run one beside the control plane of this home, which listens on this address."""
    key = object_gateway_key_file(home).read_text().strip()
    async with grpc.aio.insecure_channel(address) as channel:
        gateway = FakeObjectGateway(channel, key)
        following = asyncio.create_task(gateway.follow())
        try:
            yield gateway
        finally:
            following.cancel()
            await asyncio.wait({following})
