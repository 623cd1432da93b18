"""Buckets: make, remove, and answer what is fixed. Changes go through the control plane, as its caller."""

from neocloud.core.untrusted import xml_elements
from neocloud.messages.nebius.storage.v1 import BucketSpec, VersioningPolicy
from neocloud.object_gateway.access import RefusalCode, Refused
from neocloud.object_gateway.s3.access_settings import check_ownership
from neocloud.object_gateway.s3.bucket_view import view
from neocloud.object_gateway.s3.context import XML, Handler, Response, S3Context, xml
from neocloud.object_gateway.s3.errors import S3Error, denied, not_served
from neocloud.object_gateway.s3.headers import check_new_acl
from neocloud.object_gateway.s3.operations import BUCKET_CREATE
from neocloud.object_gateway.s3.writes import read_xml
from neocloud.object_gateway.s3.xml_out import Markup, document, element


async def create_bucket(context: S3Context) -> Response:
    request, caller, dependencies = context.request, context.caller, context.dependencies
    if caller.is_anonymous:
        raise denied()
    if BUCKET_CREATE not in await dependencies.authorizer.permissions(caller, caller.project_id):
        raise denied()
    check_new_acl(request)
    check_ownership(request.header("x-amz-object-ownership"))
    has_lock = request.header("x-amz-bucket-object-lock-enabled").lower() == "true"
    body = await context.body.document()
    if context.bucket is not None:
        if context.bucket.project_id == caller.project_id:
            if not body and context.bucket.has_object_lock == has_lock:
                # Without a location it is a request for us-east-1, where S3 takes it as done already.
                return Response(200, {"Location": f"/{request.bucket}"})
            raise S3Error("BucketAlreadyOwnedByYou", "The bucket is there already, and yours.")
        raise S3Error("BucketAlreadyExists", "The name is taken. Choose another.")
    if body:
        _check_location(xml_elements.parse(body, "CreateBucketConfiguration"), dependencies.settings.region)
    spec = BucketSpec(versioning_policy=_ENABLED) if has_lock else BucketSpec()
    try:
        await dependencies.control_plane.create_bucket(
            caller.aws_access_key_id, caller.project_id, request.bucket, spec
        )
    except Refused as error:
        if error.code is RefusalCode.INVALID:  # nothing else in the request could be
            raise S3Error("InvalidBucketName", str(error)) from error
        raise
    if has_lock:
        await context.store.set_object_lock(context.bucket_named(request.bucket).id, None)
    return Response(200, {"Location": f"/{request.bucket}"})


def _check_location(root: xml_elements.Element, region: str) -> None:
    wanted = root.get("LocationConstraint").strip()
    if wanted not in ("", region):
        raise S3Error(
            "IllegalLocationConstraintException", f"This is the region {region}. Leave the location out."
        )


async def delete_bucket(context: S3Context) -> Response:
    bucket = context.served
    if context.store.has_versions(bucket.id):
        raise S3Error("BucketNotEmpty", "The bucket has objects, older versions or delete markers.")
    await context.store.abort_uploads(bucket.id)  # S3 deletes a bucket with unfinished uploads
    await context.dependencies.control_plane.delete_bucket(context.caller.aws_access_key_id, bucket.id)
    return Response(204)


async def head_bucket(context: S3Context) -> Response:
    _ = context.served
    return Response(200, {"x-amz-bucket-region": context.dependencies.settings.region, "Content-Type": XML})


async def get_location(context: S3Context) -> Response:
    return xml(document("LocationConstraint", context.dependencies.settings.region))


async def put_encryption(context: S3Context) -> Response:
    """Take what is true anyway: everything is encrypted with AES-256, by keys of the store."""
    rules = (await read_xml(context, "ServerSideEncryptionConfiguration")).all("Rule")
    if len(rules) != 1:
        raise xml_elements.malformed("ServerSideEncryptionConfiguration needs one Rule.")
    default = rules[0].find("ApplyServerSideEncryptionByDefault")
    if default is not None and default.require("SSEAlgorithm") != "AES256":
        raise not_served("Encryption by a key of a key management service")
    return Response(200)


async def delete_encryption(context: S3Context) -> Response:
    """There is always this one, which S3 resets a bucket to."""
    return Response(204)


async def get_policy_status(context: S3Context) -> Response:
    return xml(document("PolicyStatus", element("IsPublic", view(context.served).is_public)))


async def get_policy(context: S3Context) -> Response:
    raise S3Error("NoSuchBucketPolicy", "The bucket has no AWS policy. Its own is in the storage API.")


async def delete_policy(context: S3Context) -> Response:
    """There is none to delete, which S3 takes as success."""
    return Response(204)


def fixed(name: str, *content: Markup) -> Handler:
    """Return the handler of a configuration that every bucket has alike."""

    async def answer(context: S3Context) -> Response:
        _ = context.served
        return xml(document(name, *content))

    return answer


def absent(code: str) -> Handler:
    """Return the handler of a configuration that no bucket has."""

    async def answer(context: S3Context) -> Response:
        raise S3Error(code, "The bucket has no such configuration.")

    return answer


_ENABLED = VersioningPolicy.Value("ENABLED")
_SSE = element("ApplyServerSideEncryptionByDefault", element("SSEAlgorithm", "AES256"))
FIXED: dict[str, Handler] = {
    "GetBucketEncryption": fixed("ServerSideEncryptionConfiguration", element("Rule", _SSE)),
    "GetBucketNotification": fixed("NotificationConfiguration"),
    "GetBucketLogging": fixed("BucketLoggingStatus"),
    "GetBucketAccelerate": fixed("AccelerateConfiguration"),
    "GetBucketRequestPayment": fixed("RequestPaymentConfiguration", element("Payer", "BucketOwner")),
    "GetBucketWebsite": absent("NoSuchWebsiteConfiguration"),
    "GetBucketReplication": absent("ReplicationConfigurationNotFoundError"),
}
