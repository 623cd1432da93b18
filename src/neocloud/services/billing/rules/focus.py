"""The lines of a bill as rows of FOCUS, the FinOps Open Cost and Usage Specification, in CSV. Pure.

Version 1.2, https://focus.finops.org/focus-specification/v1-2/. A null is an empty cell. Columns of what this
cloud does not have (commitment discounts, capacity reservations, zones, a second currency, invoices) are left
out, as the specification allows; a column of our own begins with x_.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

from neocloud.services.billing.rules.cost import Line

VERSION = "1.2"
ISSUER = "Neocloud"
"""Provider, publisher and issuer of the bill: this cloud does not know the name of its operator."""
COLUMNS = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency"),
    *("BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription"),
    *("ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit"),
    *("ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost"),
    *("ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName"),
    *("PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType"),
    *("ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails"),
    *("SkuPriceId", "SubAccountId", "SubAccountName", "SubAccountType", "Tags", "x_IsUnpriced"),
)
_NOTHING = Decimal(0)


@dataclass(frozen=True)
class _Measure:
    unit: str
    meter: str


_MEASURES = {
    "gpu-hour": _Measure("GPU-Hours", "GPU Usage"),
    "vcpu-hour": _Measure("vCPU-Hours", "vCPU Usage"),
    "gib-hour": _Measure("GiB-Hours", "Memory Usage"),
    "gib-month": _Measure("GiB-Months", "Storage Usage"),
    "gib": _Measure("GiB", "Data Transfer"),
    "thousand-requests": _Measure("1000 Requests", "API Requests"),
    "million-tokens": _Measure("1000000 Tokens", "Token Usage"),
}
_OTHER_MEASURE = _Measure("Unit-Hours", "Resource Usage")


@dataclass(frozen=True)
class _Service:
    category: str
    subcategory: str
    name: str


_BY_SKU = {
    "container-registry": _Service("Compute", "Containers", "Container registry"),
    "disk": _Service("Storage", "Block Storage", "Disks"),
    "filesystem": _Service("Storage", "File Storage", "Shared file systems"),
    "object-storage": _Service("Storage", "Object Storage", "Object storage"),
    "tokens": _Service("AI and Machine Learning", "Generative AI", "Model gateway"),
}
"""Categories by the first part of a SKU."""
_BY_PACKAGE = {
    "ai": _Service("Compute", "Containers", "Endpoints and jobs"),
    "compute": _Service("Compute", "Virtual Machines", "Virtual machines"),
    "inference": _Service("AI and Machine Learning", "Generative AI", "Inference"),
    "slurm": _Service("Compute", "Other (Compute)", "Slurm"),
    "tuning": _Service("AI and Machine Learning", "Machine Learning", "Fine-tuning"),
}
"""Categories by the package of a resource's kind, for SKUs that several services have."""


@dataclass(frozen=True)
class Account:
    """The payer, and the window of the bill."""

    tenant_id: str
    tenant_name: str
    currency: str
    region: str
    projects: Mapping[str, str]
    """Names by id."""
    labels: Mapping[str, Mapping[str, str]]
    """Labels of each resource, by id."""
    start: datetime
    end: datetime


def header() -> str:
    return _csv([COLUMNS])


def rows(lines: Iterable[Line], account: Account) -> str:
    """Return a row for each line, without the header."""
    found = (_row(line, account) for line in lines)
    return _csv([row[column] for column in COLUMNS] for row in found)


def _csv(rows: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _row(line: Line, account: Account) -> dict[str, str]:
    service = _service(line)
    labels = account.labels.get(line.resource_id)
    return {
        **_money(line),
        **_times(line, account),
        "BillingAccountId": account.tenant_id,
        "BillingAccountName": _name(account.tenant_name),
        "BillingAccountType": "Tenant",
        "BillingCurrency": account.currency,
        "ChargeCategory": "Usage" if line.credit is None else "Credit",
        "ChargeClass": "",
        "ChargeFrequency": "Usage-Based",
        "InvoiceIssuerName": ISSUER,
        "PricingCategory": "Standard",
        "ProviderName": ISSUER,
        "PublisherName": ISSUER,
        "RegionId": account.region,
        "RegionName": account.region,
        "ResourceId": line.resource_id,
        "ResourceName": _name(line.resource_name),
        "ResourceType": line.resource_kind.rpartition(".")[2],
        "ServiceCategory": service.category,
        "ServiceName": service.name,
        "ServiceSubcategory": service.subcategory,
        "SubAccountId": line.parent_id,
        "SubAccountName": _name(account.projects.get(line.parent_id, "")),
        "SubAccountType": "Project",
        "Tags": json.dumps(dict(labels), ensure_ascii=False, sort_keys=True) if labels else "",
    }


def _money(line: Line) -> dict[str, str]:
    """Return costs, prices and quantities. A line without a price costs nothing, as in a report."""
    measure = _MEASURES.get(line.unit, _OTHER_MEASURE)
    cost = f"{line.cost or _NOTHING:f}"
    price = "" if line.unit_price is None else f"{line.unit_price:f}"
    quantity = f"{line.quantity:f}"
    if line.credit is not None:
        return _credited(line, cost, measure)
    return {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost),
        **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), price),
        **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), quantity),
        **dict.fromkeys(("ConsumedUnit", "PricingUnit"), measure.unit),
        "ChargeDescription": f"{quantity} {measure.unit} of {line.sku}",
        "SkuId": line.sku,
        "SkuMeter": measure.meter,
        "SkuPriceDetails": "",
        "SkuPriceId": f"{line.sku}/{price}" if price else "",
        "x_IsUnpriced": "false" if price else "true",
    }


def _credited(line: Line, cost: str, measure: _Measure) -> dict[str, str]:
    """Return what a credit has: the costs are negative, and nothing was consumed or priced."""
    cause = line.credit
    assert cause is not None
    quantity = f"{-line.quantity:f} {measure.unit} of {line.sku}"
    why = f"{cause.part}: {cause.cause}{f', {cause.evidence}' if cause.evidence else ''}"
    nothing = ("ContractedUnitPrice", "ListUnitPrice", "ConsumedQuantity", "PricingQuantity")
    return {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost),
        **dict.fromkeys((*nothing, "ConsumedUnit", "PricingUnit", "SkuPriceDetails", "SkuPriceId"), ""),
        "ChargeDescription": f"Credit for {quantity}, not charged because of {why}",
        "SkuId": line.sku,
        "SkuMeter": measure.meter,
        "x_IsUnpriced": "true" if line.cost is None else "false",
    }


def _times(line: Line, account: Account) -> dict[str, str]:
    day = datetime.combine(line.day, time(), UTC)
    month = day.replace(day=1)
    return {
        "BillingPeriodStart": _moment(month),
        "BillingPeriodEnd": _moment((month + timedelta(days=31)).replace(day=1)),
        "ChargePeriodStart": _moment(max(day, account.start)),
        "ChargePeriodEnd": _moment(min(day + timedelta(days=1), account.end)),
    }


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def product_of(line: Line) -> str:
    """Return the product that a line is of, in words."""
    return _service(line).name


def _service(line: Line) -> _Service:
    package = line.resource_kind.split(".")[1] if line.resource_kind.count(".") > 1 else ""
    found = _BY_SKU.get(line.sku.partition(".")[0]) or _BY_PACKAGE.get(package)
    return found or _Service("Other", "Other (Other)", package or "Other")


def _name(text: str) -> str:
    """Return a name that somebody chose so that no spreadsheet takes it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
