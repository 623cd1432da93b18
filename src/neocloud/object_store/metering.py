"""Usage of buckets and registries, for bills: byte-hours by class, requests by class, bytes to clients.

Hours count as a whole, in the window in which they begin, once they are over. The contents of a bucket are
billed until it is purged, also while it is scheduled for deletion.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.core.usage import CountedUsage, UsageSource
from neocloud.data_plane.gateway_keys import object_gateway_folder
from neocloud.object_store.types import EGRESS, EGRESS_PRIVATE
from neocloud.object_store.usage import BucketUsage, UsageReader

BUCKET = "nebius.storage.v1.Bucket"
REGISTRY = "nebius.registry.v1.Registry"
GIB = 1 << 30
HOURS_PER_MONTH = 730
"""The same number as in the price list."""
_HOUR_MS = 3_600_000
_STORED, _REQUESTS = "stored.", "requests."


def bucket_usage(home: Path, clock: Clock) -> UsageSource:
    """Return the usage of the buckets of a home; there is none where no object was ever stored."""
    reader = UsageReader(object_gateway_folder(home), clock)

    def usage(project_ids: Sequence[str], start: datetime, end: datetime) -> Iterable[CountedUsage]:
        found: dict[tuple[str, str, object], CountedUsage] = {}
        for each in reader.read(project_ids, start, end):
            counted = _counted(each)
            key = (counted.resource_id, counted.sku, counted.start.date())
            earlier = found.get(key)
            found[key] = counted if earlier is None else _sum(earlier, counted)
        return list(found.values())

    return usage


def _counted(usage: BucketUsage) -> CountedUsage:
    """Return the usage of one hour. Storage is in whole byte-hours, rounded down."""
    if usage.what.startswith(_STORED):
        name = usage.what.removeprefix(_STORED).lower().replace("_", "-")
        name = "storage" if usage.is_registry else name
        count, unit, size = usage.count // _HOUR_MS, "gib-month", GIB * HOURS_PER_MONTH
    elif usage.what in (EGRESS, EGRESS_PRIVATE):
        name, count, unit, size = usage.what, usage.count, "gib", GIB
    else:
        name = f"requests.{usage.what.removeprefix(_REQUESTS)}"
        count, unit, size = usage.count, "thousand-requests", 1000
    return CountedUsage(
        resource_id=usage.bucket_id,
        resource_kind=REGISTRY if usage.is_registry else BUCKET,
        resource_name=usage.bucket_name,
        parent_id=usage.project_id,
        sku=f"{'container-registry' if usage.is_registry else 'object-storage'}.{name}",
        count=count,
        start=usage.hour,
        end=usage.hour + timedelta(hours=1),
        unit=unit,
        unit_size=size,
    )


def _sum(one: CountedUsage, other: CountedUsage) -> CountedUsage:
    return replace(
        one,
        count=one.count + other.count,
        start=min(one.start, other.start),
        end=max(one.end, other.end),
    )
