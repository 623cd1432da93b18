"""Public access block and object ownership of a bucket, as S3 clients set them.

The storage API has neither, so they are kept with the objects, in the gateway (rfd 0077). Access control
lists are disabled, as in buckets of S3 whose owner is enforced.
"""

import json
from dataclasses import replace
from typing import Any

from neocloud.core.json_values import is_list, is_object
from neocloud.core.untrusted.xml_elements import Element, malformed
from neocloud.object_gateway.s3.context import Response, S3Context, xml
from neocloud.object_gateway.s3.errors import S3Error, denied, not_served
from neocloud.object_gateway.s3.writes import read_xml
from neocloud.object_gateway.s3.xml_out import document, element
from neocloud.object_store.front_settings import NO_OWNERSHIP, FrontSettings, PublicAccessBlock

ENFORCED = "BucketOwnerEnforced"
_OTHERS = ("BucketOwnerPreferred", "ObjectWriter")


async def get_public_access_block(context: S3Context) -> Response:
    found = context.served.front.public_access
    if found is None:
        raise S3Error("NoSuchPublicAccessBlockConfiguration", "The bucket has no public access block.")
    content = (
        element("BlockPublicAcls", found.blocks_acls),
        element("IgnorePublicAcls", found.ignores_acls),
        element("BlockPublicPolicy", found.blocks_policy),
        element("RestrictPublicBuckets", found.restricts),
    )
    return xml(document("PublicAccessBlockConfiguration", *content))


async def put_public_access_block(context: S3Context) -> Response:
    root = await read_xml(context, "PublicAccessBlockConfiguration")
    wanted = PublicAccessBlock(
        blocks_acls=_is_true(root, "BlockPublicAcls"),
        ignores_acls=_is_true(root, "IgnorePublicAcls"),
        blocks_policy=_is_true(root, "BlockPublicPolicy"),
        restricts=_is_true(root, "RestrictPublicBuckets"),
    )
    await _set_public_access(context, wanted)
    return Response(200)


async def delete_public_access_block(context: S3Context) -> Response:
    await _set_public_access(context, None)
    return Response(204)


async def _set_public_access(context: S3Context, wanted: PublicAccessBlock | None) -> None:
    def change(front: FrontSettings) -> FrontSettings:
        return replace(front, public_access=wanted)

    await context.store.set_front(context.served.id, change)


def _is_true(root: Element, name: str) -> bool:
    given = root.get(name, "false").strip().lower()
    if given not in ("true", "false"):
        raise malformed(f"{name} is true or false.")
    return given == "true"


async def get_ownership_controls(context: S3Context) -> Response:
    if context.served.front.ownership == NO_OWNERSHIP:
        raise S3Error("OwnershipControlsNotFoundError", "The bucket has no ownership controls.")
    return xml(document("OwnershipControls", element("Rule", element("ObjectOwnership", ENFORCED))))


async def put_ownership_controls(context: S3Context) -> Response:
    rules = (await read_xml(context, "OwnershipControls")).all("Rule")
    if len(rules) != 1:
        raise malformed("OwnershipControls needs one Rule.")
    check_ownership(rules[0].require("ObjectOwnership"))
    await _set_ownership(context, ENFORCED)
    return Response(200)


async def delete_ownership_controls(context: S3Context) -> Response:
    """Forget them; access control lists stay disabled nevertheless."""
    await _set_ownership(context, NO_OWNERSHIP)
    return Response(204)


async def _set_ownership(context: S3Context, wanted: str) -> None:
    await context.store.set_front(context.served.id, lambda front: replace(front, ownership=wanted))


def check_ownership(given: str) -> None:
    """Raises S3Error for another ownership than the one there is: the project owns all objects."""
    if given in _OTHERS:
        raise not_served(f"An object ownership other than {ENFORCED}")
    if given not in ("", ENFORCED):
        raise malformed(f"ObjectOwnership is one of {', '.join((ENFORCED, *_OTHERS))}.")


async def put_policy(context: S3Context) -> Response:
    blocked = context.served.front.public_access
    if blocked is not None and blocked.blocks_policy and _is_public(await context.body.document()):
        raise denied("The public access block of the bucket forbids public policies.")
    raise not_served("A policy of AWS. Give roles on paths by the bucket policy of the storage API; this")


def _is_public(policy: bytes) -> bool:
    """Return whether a statement of an AWS policy allows something to everybody."""
    try:
        statements: object = json.loads(policy)["Statement"]
        return any(map(_allows_everybody, statements if is_list(statements) else [statements]))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise S3Error("MalformedPolicy", "The policy is not one of AWS.") from None


def _allows_everybody(statement: Any) -> bool:
    return statement["Effect"] == "Allow" and _is_everybody(statement.get("Principal"))


def _is_everybody(principal: object) -> bool:
    if is_object(principal):
        given = principal.get("AWS")
        return "*" in (given if is_list(given) else [given])
    return principal == "*"
