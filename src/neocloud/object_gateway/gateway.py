"""The application of the object gateway: container images below /v2, everything else as S3.

No bucket has this path: names have three characters at least. Where the host names a bucket, it is a key.
"""

from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from neocloud.data_plane.http.server import host_name
from neocloud.object_gateway.oci.app import PREFIX, RegistryApp
from neocloud.object_gateway.s3.app import S3App
from neocloud.object_store.store import ObjectStore


class Gateway:
    def __init__(self, s3: S3App, registry: RegistryApp, domains: Sequence[str]) -> None:
        """`domains` are names below which the host names a bucket."""
        self.s3 = s3
        self._registry = registry
        self._domains = tuple(f".{domain}" for domain in domains)

    @property
    def store(self) -> ObjectStore:
        return self.s3.store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_of_registry(scope):
            return await self._registry(scope, receive, send)
        await self.s3(scope, receive, send)

    def _is_of_registry(self, scope: Scope) -> bool:
        path: bytes = scope["raw_path"].partition(b"?")[0]
        prefix = PREFIX.encode()
        if path != prefix and not path.startswith(prefix + b"/"):
            return False
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return not host_name(host).endswith(self._domains)
