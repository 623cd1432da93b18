"""Versioning, CORS, lifecycle and tags of buckets: read as applied, changed through the control plane."""

from collections.abc import Callable
from dataclasses import replace

from neocloud.core.untrusted.xml_elements import Element, malformed
from neocloud.messages.nebius.storage.v1 import Bucket as BucketMessage
from neocloud.messages.nebius.storage.v1 import CORSConfiguration, CORSRule, VersioningPolicy
from neocloud.object_gateway.s3.bucket_view import view
from neocloud.object_gateway.s3.context import Response, S3Context, xml
from neocloud.object_gateway.s3.errors import S3Error, not_served
from neocloud.object_gateway.s3.lifecycle_xml import read_lifecycle, write_lifecycle
from neocloud.object_gateway.s3.object_settings import read_tags, tagging
from neocloud.object_gateway.s3.writes import read_xml
from neocloud.object_gateway.s3.xml_out import Markup, document, element, joined, optional
from neocloud.object_store.types import Versioning

MAX_CORS_RULES = 100
MAX_BUCKET_TAGS = 50


async def _update(context: S3Context, change: Callable[[BucketMessage], None], status: int) -> Response:
    bucket = context.served
    await context.dependencies.control_plane.update_bucket(
        context.caller.aws_access_key_id, bucket.id, change
    )
    return Response(status)


async def get_versioning(context: S3Context) -> Response:
    found = context.served.versioning
    status = Markup("")
    if found is not Versioning.DISABLED:
        status = element("Status", "Enabled" if found is Versioning.ENABLED else "Suspended")
    return xml(document("VersioningConfiguration", status))


async def put_versioning(context: S3Context) -> Response:
    root = await read_xml(context, "VersioningConfiguration")
    status = root.require("Status")
    if status not in ("Enabled", "Suspended"):
        raise malformed("Status is Enabled or Suspended.")
    if root.get("MfaDelete", "Disabled") != "Disabled":
        raise not_served("MfaDelete")
    if status == "Suspended" and context.served.has_object_lock:
        raise S3Error("InvalidBucketState", "Versioning of a bucket with object lock cannot be suspended.")
    policy = VersioningPolicy.Value(status.upper())

    def change(bucket: BucketMessage) -> None:
        bucket.spec.versioning_policy = policy

    return await _update(context, change, 200)


async def get_cors(context: S3Context) -> Response:
    rules = view(context.served).spec.cors.rules
    if not rules:
        raise S3Error("NoSuchCORSConfiguration", "The bucket has no CORS configuration.")
    return xml(document("CORSConfiguration", joined(_cors_rule(rule) for rule in rules)))


def _cors_rule(rule: CORSRule) -> Markup:
    return element(
        "CORSRule",
        optional("ID", rule.id),
        joined(element("AllowedMethod", each) for each in rule.allowed_methods),
        joined(element("AllowedOrigin", each) for each in rule.allowed_origins),
        joined(element("AllowedHeader", each) for each in rule.allowed_headers),
        joined(element("ExposeHeader", each) for each in rule.expose_headers),
        element("MaxAgeSeconds", rule.max_age_seconds) if rule.HasField("max_age_seconds") else Markup(""),
    )


async def put_cors(context: S3Context) -> Response:
    root = await read_xml(context, "CORSConfiguration")
    rules = [_read_cors_rule(each) for each in root.all("CORSRule")]
    if not 1 <= len(rules) <= MAX_CORS_RULES:
        raise malformed(f"CORSConfiguration needs 1 to {MAX_CORS_RULES} rules.")

    def change(bucket: BucketMessage) -> None:
        bucket.spec.cors.CopyFrom(CORSConfiguration(rules=rules))

    return await _update(context, change, 200)


def _read_cors_rule(given: Element) -> CORSRule:
    found = CORSRule(
        allowed_methods=_texts(given, "AllowedMethod"),
        allowed_origins=_texts(given, "AllowedOrigin"),
        allowed_headers=_texts(given, "AllowedHeader"),
        expose_headers=_texts(given, "ExposeHeader"),
    )
    if not found.allowed_methods or not found.allowed_origins:
        raise malformed("A CORSRule needs AllowedMethod and AllowedOrigin.")
    if given.find("ID"):
        found.id = given.get("ID")
    seconds = given.number("MaxAgeSeconds")
    if seconds is not None:
        found.max_age_seconds = min(seconds, 2**31 - 1)
    return found


def _texts(given: Element, name: str) -> list[str]:
    return [each.text.strip() for each in given.all(name)]


async def delete_cors(context: S3Context) -> Response:
    return await _update(context, lambda bucket: bucket.spec.ClearField("cors"), 204)


async def get_lifecycle(context: S3Context) -> Response:
    rules = view(context.served).spec.lifecycle_configuration.rules
    if not rules:
        raise S3Error("NoSuchLifecycleConfiguration", "The bucket has no lifecycle configuration.")
    return xml(write_lifecycle(rules, context.served.front.prefix_rules))


async def put_lifecycle(context: S3Context) -> Response:
    rules, old = read_lifecycle(await read_xml(context, "LifecycleConfiguration"))

    def change(bucket: BucketMessage) -> None:
        configuration = bucket.spec.lifecycle_configuration
        del configuration.rules[:]
        configuration.rules.extend(rules)

    response = await _update(context, change, 200)
    await context.store.set_front(context.served.id, lambda front: replace(front, prefix_rules=old))
    return response


async def delete_lifecycle(context: S3Context) -> Response:
    return await _update(context, lambda bucket: bucket.spec.ClearField("lifecycle_configuration"), 204)


async def get_tagging(context: S3Context) -> Response:
    labels = view(context.served).labels
    if not labels:
        raise S3Error("NoSuchTagSet", "The bucket has no tags.")
    return xml(tagging(labels))


async def put_tagging(context: S3Context) -> Response:
    tags = read_tags(await read_xml(context, "Tagging"), MAX_BUCKET_TAGS)

    def change(bucket: BucketMessage) -> None:
        bucket.metadata.labels.clear()
        bucket.metadata.labels.update(tags)

    return await _update_labels(context, change)


async def delete_tagging(context: S3Context) -> Response:
    return await _update_labels(context, lambda bucket: bucket.metadata.labels.clear())


async def _update_labels(context: S3Context, change: Callable[[BucketMessage], None]) -> Response:
    """The control plane does not wait until labels are applied, so they are applied here at once."""
    response = await _update(context, change, 204)
    await context.dependencies.refresh()
    return response
