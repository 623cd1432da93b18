"""What a resource would cost that somebody thinks of making: from its request to SKUs and money. Pure.

An estimate is the price list's prices of today times what the request asks for, exactly; only what is shown
is rounded. A month is 730 hours, as in a bill.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal
from fractions import Fraction
from typing import Any

from neocloud.core.kind import Violation
from neocloud.messages.nebius.compute.v1 import DiskSpec
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
"""Seconds of each unit of time that a cost can be asked for."""
USUAL_SPANS = ("hour", "month")
_EXACT = Decimal(1).scaleb(-12)
_CENT = Decimal("0.01")

Units = Mapping[str, int]
"""How much of which SKU a resource holds."""


class NoEstimate(Exception):
    """There is no price for it; `violation` says which field is to blame and what would be right."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


@dataclass(frozen=True)
class SkuCost:
    sku: str
    quantity: Fraction
    cost: Fraction


def units(request: Any) -> Units:
    """What the resource of a create or update request would hold. Raises NoEstimate."""
    found = _UNITS.get(request.DESCRIPTOR.full_name)
    if found is None:
        known = ", ".join(name.rpartition(".")[2] for name in _UNITS)
        name = request.DESCRIPTOR.full_name
        raise NoEstimate(Violation("spec", f"is a {name}, which has no price; there are prices for {known}"))
    return found(request.spec)


def costs(held: Units, span: str, prices: PriceList, day: date) -> Sequence[SkuCost]:
    """What holding this costs for one `span` of time at the day's prices. Raises NoEstimate."""
    found = []
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
    """All decimals that matter, none that do not."""
    number = Decimal(value.numerator) / Decimal(value.denominator)
    text = f"{number.quantize(_EXACT, rounding=ROUND_HALF_UP):f}"
    return text.rstrip("0").rstrip(".")


def rounded_up(value: Fraction) -> str:
    return f"{(Decimal(value.numerator) / Decimal(value.denominator)).quantize(_CENT, rounding=ROUND_UP):f}"


def _instance(spec: Any) -> Units:
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


def _disk(spec: Any) -> Units:
    return _stored("disk", spec, DiskType)


def _filesystem(spec: Any) -> Units:
    return _stored("filesystem", spec, FilesystemType)


def _stored(noun: str, spec: Any, types: Any) -> Units:
    if size_bytes(spec) <= 0:
        raise NoEstimate(Violation("spec.size", "is required: the cost is by the GiB"))
    kind = types.Name(spec.type).lower().replace("_", "-")
    return {f"{noun}.{kind}": gib(size_bytes(spec))}


def _of(noun: str, find: Callable[[Any], Units]) -> Iterable[tuple[str, Callable[[Any], Units]]]:
    return ((f"nebius.compute.v1.{verb}{noun}Request", find) for verb in ("Create", "Update"))


_UNITS: Mapping[str, Callable[[Any], Units]] = dict(
    (*_of("Instance", _instance), *_of("Disk", _disk), *_of("Filesystem", _filesystem))
)
