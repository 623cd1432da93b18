"""HEAD, GET, PUT and DELETE of manifests, by digest and by tag."""

from neocloud.core import digests
from neocloud.object_gateway.oci.authorizer import mirrored
from neocloud.object_gateway.oci.context import RegistryContext
from neocloud.object_gateway.oci.documents import read_manifest, too_large
from neocloud.object_gateway.oci.errors import RegistryError
from neocloud.object_gateway.oci.mirror import Passed
from neocloud.object_gateway.oci.paths import checked_tag
from neocloud.object_gateway.s3.context import Response
from neocloud.object_store.image_types import MAX_MANIFEST_BYTES, Manifest, NewManifest

MAX_TAGS_AT_ONCE = 50


async def head_manifest(context: RegistryContext) -> Response:
    if passed := await _brought(context):
        return Response(200, _headers(passed.new), length=passed.new.size)
    found = _found(context)
    return Response(200, _headers(found), length=found.size)


async def get_manifest(context: RegistryContext) -> Response:
    if passed := await _brought(context):
        return Response(200, _headers(passed.new), passed.body)
    found = _found(context)
    reader = await context.store.open_manifest(context.registry.id, context.repository, found.digest)
    return Response(200, _headers(found), reader=reader)


async def put_manifest(context: RegistryContext) -> Response:
    reference = context.path.manifest
    body = await _read(context)
    is_tag = ":" not in reference
    algorithm = digests.DEFAULT if is_tag else digests.algorithm_of(reference)
    new = read_manifest(body, context.request.header("content-type"), algorithm)
    if not is_tag and reference != new.digest:
        raise RegistryError(400, "DIGEST_INVALID", "The manifest has another digest than the path says.")
    more = _more_tags(context)
    tags = [reference, *more] if is_tag else more
    await context.store.put_manifest(context.registry.id, context.repository, new, body, tags)
    headers = {
        "Location": context.location(f"manifests/{new.digest}"),
        "Docker-Content-Digest": new.digest,
    }
    if more:
        headers["OCI-Tag"] = ", ".join(more)
    if new.subject is not None:
        headers["OCI-Subject"] = new.subject
    return Response(201, headers, is_counted=True)


def _more_tags(context: RegistryContext) -> list[str]:
    """Return the tags of the query, which the manifest gets, too. Raises RegistryError."""
    given = [value for name, value in context.request.query if name == "tag"]
    if len(given) > MAX_TAGS_AT_ONCE:
        raise RegistryError(414, "UNSUPPORTED", f"One request sets {MAX_TAGS_AT_ONCE} tags at most.")
    return list(dict.fromkeys(checked_tag(each) for each in given))


async def delete_manifest(context: RegistryContext) -> Response:
    """Remove a manifest with its tags; by a tag, the tag alone."""
    reference, registry = context.path.manifest, context.registry
    if ":" in reference:
        await context.store.delete_manifest(registry.id, context.repository, reference)
    else:
        await context.store.delete_tag(registry.id, context.repository, reference)
    return Response(202, is_counted=True)


async def _brought(context: RegistryContext) -> Passed | None:
    """Bring a manifest of a mirror in; return it where it is not stored."""
    place = await mirrored(context)
    if place is None:
        return None
    return await context.dependencies.mirrors.bring_manifest(place, context.path.manifest)


def _found(context: RegistryContext) -> Manifest:
    return context.store.manifest(context.registry.id, context.repository, context.path.manifest)


async def _read(context: RegistryContext) -> bytes:
    if (context.body.length or 0) > MAX_MANIFEST_BYTES:
        raise too_large()
    found = bytearray()
    async for piece in context.body.raw():
        found += piece
        if len(found) > MAX_MANIFEST_BYTES:
            raise too_large()
    return bytes(found)


def _headers(found: Manifest | NewManifest) -> dict[str, str]:
    return {
        "Content-Type": found.media_type,
        "Docker-Content-Digest": found.digest,
        "ETag": f'"{found.digest}"',
    }
