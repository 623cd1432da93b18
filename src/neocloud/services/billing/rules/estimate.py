"""The estimated cost of a resource: from its create or update request to SKUs and money. Pure.

An estimate is today's prices times the units of the request, exactly; only shown figures are rounded. A month
is 730 hours, as in a bill.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal
from fractions import Fraction

from google.protobuf.message import Message

from neocloud.core.kind import Violation
from neocloud.messages.nebius.compute.v1 import (
    CreateDiskRequest,
    CreateFilesystemRequest,
    CreateInstanceRequest,
    DiskSpec,
    FilesystemSpec,
    InstanceSpec,
    UpdateDiskRequest,
    UpdateFilesystemRequest,
    UpdateInstanceRequest,
)
from neocloud.services.billing.rules.price_list import HOURS_PER_MONTH, PriceList
from neocloud.services.compute.public import preset, preset_violations
from neocloud.services.compute.types import FilesystemType, gib, size_bytes

DiskType = DiskSpec.DiskType
HOUR = 3600
SPANS: Mapping[str, int] = {
    "minute": 60,
    "hour": HOUR,
    "day": 24 * HOUR,
    "week": 7 * 24 * HOUR,
    "month": HOURS_PER_MONTH * HOUR,
}
"""Seconds of each unit of time of an estimate."""
USUAL_SPANS = ("hour", "month")
_KNOWN = (
    "CreateInstanceRequest, UpdateInstanceRequest, CreateDiskRequest, UpdateDiskRequest, "
    "CreateFilesystemRequest, UpdateFilesystemRequest"
)
_EXACT = Decimal(1).scaleb(-12)
_CENT = Decimal("0.01")

Units = Mapping[str, int]
"""The units that a resource holds, by SKU."""


class NoEstimate(Exception):
    """The request has no price; `violation` names the field and what is valid."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


@dataclass(frozen=True)
class SkuCost:
    sku: str
    quantity: Fraction
    cost: Fraction


def units(request: Message) -> Units:
    """Return the units that the resource of a create or update request would hold. Raises NoEstimate."""
    if isinstance(request, CreateInstanceRequest | UpdateInstanceRequest):
        return _instance(request.spec)
    if isinstance(request, CreateDiskRequest | UpdateDiskRequest):
        return _disk(request.spec)
    if isinstance(request, CreateFilesystemRequest | UpdateFilesystemRequest):
        return _filesystem(request.spec)
    name = request.DESCRIPTOR.full_name
    raise NoEstimate(Violation("spec", f"is a {name}, which has no price; there are prices for {_KNOWN}"))


def costs(held: Units, span: str, prices: PriceList, day: date) -> Sequence[SkuCost]:
    """Return the cost of these units for one `span` of time at the day's prices. Raises NoEstimate."""
    found: list[SkuCost] = []
    for sku_name, number in sorted(held.items()):
        sku = prices.skus.get(sku_name)
        price = sku.price_on(day) if sku else None
        if sku is None or price is None:
            why = f"needs {sku_name}, which has no price; add one to the price list (neo up --price-file)"
            raise NoEstimate(Violation("spec", why))
        quantity = Fraction(number * SPANS[span], sku.unit.parts)
        found.append(SkuCost(sku_name, quantity, quantity * Fraction(price)))
    return found


def exact(value: Fraction) -> str:
    """Return the number with at most twelve decimals, without trailing zeros."""
    number = Decimal(value.numerator) / Decimal(value.denominator)
    text = f"{number.quantize(_EXACT, rounding=ROUND_HALF_UP):f}"
    return text.rstrip("0").rstrip(".")


def rounded_up(value: Fraction) -> str:
    return f"{(Decimal(value.numerator) / Decimal(value.denominator)).quantize(_CENT, rounding=ROUND_UP):f}"


def _instance(spec: InstanceSpec) -> Units:
    resources = spec.resources
    for violation in preset_violations(resources.platform, resources.preset, "spec.resources"):
        raise NoEstimate(violation)
    is_preemptible = spec.HasField("preemptible") or spec.WhichOneof("pricing_model") not in (
        None,
        "on_demand",
    )
    shape = preset(resources.platform, resources.preset)
    held = Counter(shape.skus(is_preemptible=is_preemptible))
    for attached in (spec.boot_disk, *spec.secondary_disks):
        if attached.HasField("managed_disk"):
            held.update(_disk(attached.managed_disk.spec))
    return held


def _disk(spec: DiskSpec) -> Units:
    return _stored("disk", spec, DiskType.Name(spec.type))


def _filesystem(spec: FilesystemSpec) -> Units:
    return _stored("filesystem", spec, FilesystemType.Name(spec.type))


def _stored(noun: str, spec: DiskSpec | FilesystemSpec, kind: str) -> Units:
    if size_bytes(spec) <= 0:
        raise NoEstimate(Violation("spec.size", "is required: the cost is by the GiB"))
    return {f"{noun}.{kind.lower().replace('_', '-')}": gib(size_bytes(spec))}
