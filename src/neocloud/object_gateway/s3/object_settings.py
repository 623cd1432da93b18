"""Tags, retention, legal hold and access control list of an object."""

from collections.abc import Mapping

from neocloud.core.untrusted.xml_elements import Element, malformed
from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3 import responses
from neocloud.object_gateway.s3.bucket_view import is_open, view
from neocloud.object_gateway.s3.context import Response, S3Context, xml
from neocloud.object_gateway.s3.errors import S3Error, no_acls
from neocloud.object_gateway.s3.lists import owner
from neocloud.object_gateway.s3.operations import GET, LIST, Scope
from neocloud.object_gateway.s3.writes import bypasses, read_xml
from neocloud.object_gateway.s3.xml_out import Markup, document, element, joined, time
from neocloud.object_store.last_access import AccessMethod
from neocloud.object_store.types import ObjectVersion, Retention

_XSI = ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
_ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"


async def _version(context: S3Context) -> ObjectVersion:
    return await context.store.find_version(context.served.id, context.key, context.version_id)


async def get_tagging(context: S3Context) -> Response:
    version = await _version(context)
    context.note_access(version, AccessMethod.GET_OBJECT_TAGGING)
    return xml(tagging(version.attributes.tags), responses.version_id(version))


def tagging(tags: Mapping[str, str]) -> bytes:
    pairs = sorted(tags.items())
    content = [element("Tag", element("Key", key), element("Value", value)) for key, value in pairs]
    return document("Tagging", element("TagSet", joined(content)))


async def put_tagging(context: S3Context) -> Response:
    tags = read_tags(await read_xml(context, "Tagging"), fields.MAX_TAGS)
    version = await context.store.set_tags(context.served.id, context.key, context.version_id, tags)
    return Response(200, responses.version_id(version), is_counted=True)


def read_tags(root: Element, most: int) -> dict[str, str]:
    found = root.find("TagSet")
    if found is None:
        raise malformed("Tagging needs TagSet.")
    pairs = [(each.require("Key"), each.require("Value")) for each in found.all("Tag")]
    return dict(fields.checked_tags(pairs, most))


async def delete_tagging(context: S3Context) -> Response:
    version = await context.store.set_tags(context.served.id, context.key, context.version_id, {})
    return Response(204, responses.version_id(version), is_counted=True)


async def get_retention(context: S3Context) -> Response:
    _check_lock(context)
    found = (await _version(context)).attributes.retention
    if found is None:
        raise S3Error("NoSuchObjectLockConfiguration", "The object has no retention period.")
    return xml(
        document("Retention", element("Mode", found.mode), element("RetainUntilDate", time(found.until)))
    )


async def put_retention(context: S3Context) -> Response:
    root = await read_xml(context, "Retention")
    retention = None
    if root.children:
        mode = fields.lock_mode(root.require("Mode"), "MalformedXML")
        retention = Retention(mode, fields.iso_time(root.require("RetainUntilDate")))
    if retention is not None and retention.until <= context.dependencies.clock.now():
        raise S3Error("InvalidArgument", "The retain until date must be in the future.")
    await context.store.set_retention(
        context.served.id,
        context.key,
        context.version_id,
        retention,
        bypass_governance=await bypasses(context, context.key),
    )
    return Response(200, is_counted=True)


async def get_legal_hold(context: S3Context) -> Response:
    _check_lock(context)
    is_held = (await _version(context)).attributes.has_legal_hold
    return xml(document("LegalHold", element("Status", "ON" if is_held else "OFF")))


async def put_legal_hold(context: S3Context) -> Response:
    status = (await read_xml(context, "LegalHold")).require("Status")
    if status not in ("ON", "OFF"):
        raise malformed("Status is ON or OFF.")
    await context.store.set_legal_hold(context.served.id, context.key, context.version_id, status == "ON")
    return Response(200, is_counted=True)


def _check_lock(context: S3Context) -> None:
    if not context.served.has_object_lock:
        raise S3Error("InvalidRequest", "The bucket has no object lock.")


async def get_acl(context: S3Context) -> Response:
    """Answer what is true: the project owns the object, and anybody may read it where a rule says so."""
    version = await _version(context)
    bucket = context.served
    is_public = is_open(bucket) and view(bucket).allows_anybody(GET, context.key, Scope.KEY)
    return xml(acl(bucket.project_id, is_public=is_public), responses.version_id(version))


async def get_bucket_acl(context: S3Context) -> Response:
    bucket = context.served
    is_public = is_open(bucket) and view(bucket).allows_anybody(LIST, "", Scope.PREFIX)
    return xml(acl(bucket.project_id, is_public=is_public))


def acl(project_id: str, *, is_public: bool) -> bytes:
    grants = [_grant("CanonicalUser", _named(project_id), "FULL_CONTROL")]
    if is_public:
        grants.append(_grant("Group", element("URI", _ALL_USERS), "READ"))
    return document("AccessControlPolicy", owner(project_id), element("AccessControlList", joined(grants)))


def _named(project_id: str) -> Markup:
    return joined((element("ID", project_id), element("DisplayName", project_id)))


def _grant(kind: str, who: Markup, permission: str) -> Markup:
    grantee = element("Grantee", who, attributes=f'{_XSI} xsi:type="{kind}"')
    return element("Grant", grantee, element("Permission", permission))


async def put_acl(context: S3Context) -> Response:
    if context.key:
        await _version(context)
    fields.check_acl(context.request, context.served)
    if not context.request.header("x-amz-acl"):
        _check_own(await read_xml(context, "AccessControlPolicy"), context.served.project_id)
    return Response(200)


def _check_own(root: Element, project_id: str) -> None:
    """Raises S3Error unless the list says what is true anyway: the owner has full control."""
    grants = root.find("AccessControlList")
    if grants is None:
        raise malformed("AccessControlPolicy needs AccessControlList.")
    for grant in grants.all("Grant"):
        grantee = grant.find("Grantee")
        is_owner = grantee is not None and grantee.get("ID") == project_id
        if not is_owner or grant.get("Permission") != "FULL_CONTROL":
            raise no_acls()
