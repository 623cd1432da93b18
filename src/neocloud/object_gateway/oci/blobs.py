# pyright: strict
"""HEAD, GET and DELETE of blobs."""

from neocloud.object_gateway.oci.authorizer import mirrored
from neocloud.object_gateway.oci.context import Exchange
from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3.context import Response
from neocloud.object_store.bodies.reader import Reader
from neocloud.object_store.errors import BlobUnknown
from neocloud.object_store.types import ByteRange


async def head_blob(exchange: Exchange) -> Response:
    digest = exchange.path.digest
    size = await exchange.store.blob_size(exchange.registry.id, exchange.repository, digest)
    return Response(200, _described(digest), length=size)


async def get_blob(exchange: Exchange) -> Response:
    digest, asked = exchange.path.digest, exchange.request.headers.get("range")
    wanted = None if asked is None else fields.byte_range(asked)
    reader = await _opened(exchange, digest, wanted)
    found = _described(digest)
    if wanted is None or not reader.version.size:
        return Response(200, found, reader=reader)
    last = reader.first + reader.length - 1
    found["Content-Range"] = f"bytes {reader.first}-{last}/{reader.version.size}"
    return Response(206, found, reader=reader)


async def _opened(exchange: Exchange, digest: str, wanted: ByteRange | None) -> Reader:
    where = (exchange.registry.id, exchange.repository, digest)
    try:
        return await exchange.store.open_blob(*where, wanted)
    except BlobUnknown:
        place = await mirrored(exchange)
        if place is None:
            raise
    await exchange.front.mirrors.bring_blob(place, digest)
    return await exchange.store.open_blob(*where, wanted)


async def delete_blob(exchange: Exchange) -> Response:
    await exchange.store.delete_blob(exchange.registry.id, exchange.repository, exchange.path.digest)
    return Response(202, is_counted=True)


def _described(digest: str) -> dict[str, str]:
    return {
        "Content-Type": "application/octet-stream",
        "Docker-Content-Digest": digest,
        "ETag": f'"{digest}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=31536000, immutable",
    }
