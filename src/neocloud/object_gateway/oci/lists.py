"""Lists: the tags of a repository, and the manifests that are about another one."""

from typing import Any
from urllib.parse import quote

import orjson

from neocloud.object_gateway.oci.context import JSON, RegistryContext
from neocloud.object_gateway.oci.documents import OCI_INDEX
from neocloud.object_gateway.oci.errors import RegistryError
from neocloud.object_gateway.s3.context import Response
from neocloud.object_store.errors import ManifestUnknown
from neocloud.object_store.image_types import MAX_TAGS_PAGE, Manifest

REFERRERS_PAGE = 500
_MAX_LAST = 128


async def list_tags(context: RegistryContext) -> Response:
    limit = _number(context, "n", MAX_TAGS_PAGE)
    last = (context.request.get("last") or "")[:_MAX_LAST]
    try:
        page = context.store.tags(context.registry.id, context.repository, last, limit)
    except ManifestUnknown as error:
        raise RegistryError(404, "NAME_UNKNOWN", str(error)) from error
    headers = {"Content-Type": JSON}
    if page.is_truncated and page.tags:
        path = context.location(f"tags/list?n={limit}&last={quote(page.tags[-1], safe='')}")
        headers["Link"] = f'<{path}>; rel="next"'
    answer = {"name": context.path.name, "tags": page.tags}
    return Response(200, headers, orjson.dumps(answer))


async def list_referrers(context: RegistryContext) -> Response:
    subject, kind = context.path.digest, context.request.get("artifactType") or ""
    after = _number(context, "after", 0)
    page = context.store.referrers(
        context.registry.id, context.repository, subject, kind, after, REFERRERS_PAGE
    )
    headers = {"Content-Type": OCI_INDEX}
    if kind:
        headers["OCI-Filters-Applied"] = "artifactType"
    if page.next_after:
        chosen = f"&artifactType={quote(kind, safe='')}" if kind else ""
        path = context.location(f"referrers/{subject}?after={page.next_after}{chosen}")
        headers["Link"] = f'<{path}>; rel="next"'
    answer = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [_described(each) for each in page.manifests],
    }
    return Response(200, headers, orjson.dumps(answer))


def _described(found: Manifest) -> dict[str, Any]:
    described: dict[str, Any] = {
        "mediaType": found.media_type,
        "digest": found.digest,
        "size": found.size,
    }
    if found.artifact_type:
        described["artifactType"] = found.artifact_type
    if found.annotations:
        described["annotations"] = found.annotations
    return described


def _number(context: RegistryContext, name: str, default: int) -> int:
    text = context.request.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise RegistryError(400, "PAGINATION_NUMBER_INVALID", f"{name} must be a whole number.")
    return min(int(text), default or int(text))
