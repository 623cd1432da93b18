"""Object lock of a bucket: whether its versions may be protected, and how new ones are by default.

The published storage API has no such field, so it is kept with the objects, in the gateway (rfd 0027).
"""

from neocloud.core.untrusted.xml_elements import Element, malformed
from neocloud.object_gateway.s3.context import Response, S3Context, xml
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.headers import lock_mode
from neocloud.object_gateway.s3.writes import read_xml
from neocloud.object_gateway.s3.xml_out import Markup, document, element
from neocloud.object_store.types import DefaultRetention, Versioning

MAX_DAYS, MAX_YEARS = 36_500, 100


async def get_object_lock(context: S3Context) -> Response:
    bucket = context.served
    if not bucket.has_object_lock:
        raise S3Error("ObjectLockConfigurationNotFoundError", "The bucket has no object lock.")
    rule = Markup("")
    if (found := bucket.default_retention) is not None:
        period = element("Years", found.years) if found.years else element("Days", found.days)
        rule = element("Rule", element("DefaultRetention", element("Mode", found.mode), period))
    return xml(document("ObjectLockConfiguration", element("ObjectLockEnabled", "Enabled"), rule))


async def put_object_lock(context: S3Context) -> Response:
    retention = _read(await read_xml(context, "ObjectLockConfiguration"))
    bucket = context.served
    if bucket.versioning is not Versioning.ENABLED:
        raise S3Error("InvalidBucketState", "Object lock needs versioning. Enable it first.")
    await context.store.set_object_lock(bucket.id, retention)
    return Response(200)


def _read(root: Element) -> DefaultRetention | None:
    if root.require("ObjectLockEnabled") != "Enabled":
        raise malformed("ObjectLockEnabled is Enabled: a lock is never taken away.")
    rule = root.find("Rule")
    if rule is None:
        return None
    found = rule.find("DefaultRetention")
    if found is None:
        raise malformed("Rule needs DefaultRetention.")
    mode = lock_mode(found.require("Mode"), "MalformedXML")
    days, years = _integer(found, "Days"), _integer(found, "Years")
    if (days is None) == (years is None):
        raise malformed("DefaultRetention needs either Days or Years.")
    if not (days is None or 1 <= days <= MAX_DAYS) or not (years is None or 1 <= years <= MAX_YEARS):
        raise S3Error(
            "InvalidRetentionPeriod",
            f"A default retention is 1 to {MAX_DAYS:,} days, or 1 to {MAX_YEARS} years.",
        )
    return DefaultRetention(mode, days or 0, years or 0)


def _integer(given: Element, name: str) -> int | None:
    """Return the number of a child, also a negative one, which is an error of another kind."""
    found = given.get(name).strip()
    return -1 if found.startswith("-") else given.number(name)
