"""HEAD, GET and DELETE of blobs."""

from neocloud.object_gateway.oci.authorizer import mirrored
from neocloud.object_gateway.oci.context import RegistryContext
from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3.context import Response
from neocloud.object_store.bodies.reader import Reader
from neocloud.object_store.errors import BlobUnknown
from neocloud.object_store.types import ByteRange


async def head_blob(context: RegistryContext) -> Response:
    digest = context.path.digest
    size = await context.store.blob_size(context.registry.id, context.repository, digest)
    return Response(200, _described(digest), length=size)


async def get_blob(context: RegistryContext) -> Response:
    digest, asked = context.path.digest, context.request.headers.get("range")
    wanted = None if asked is None else fields.byte_range(asked)
    reader = await _opened(context, digest, wanted)
    found = _described(digest)
    if wanted is None or not reader.version.size:
        return Response(200, found, reader=reader)
    last = reader.first + reader.length - 1
    found["Content-Range"] = f"bytes {reader.first}-{last}/{reader.version.size}"
    return Response(206, found, reader=reader)


async def _opened(context: RegistryContext, digest: str, wanted: ByteRange | None) -> Reader:
    where = (context.registry.id, context.repository, digest)
    try:
        return await context.store.open_blob(*where, wanted)
    except BlobUnknown:
        place = await mirrored(context)
        if place is None:
            raise
    await context.dependencies.mirrors.bring_blob(place, digest)
    return await context.store.open_blob(*where, wanted)


async def delete_blob(context: RegistryContext) -> Response:
    await context.store.delete_blob(context.registry.id, context.repository, context.path.digest)
    return Response(202, is_counted=True)


def _described(digest: str) -> dict[str, str]:
    return {
        "Content-Type": "application/octet-stream",
        "Docker-Content-Digest": digest,
        "ETag": f'"{digest}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=31536000, immutable",
    }
