"""The rows of `neo billing report`: lines added up by what is asked for, subtotals, and names of accounts."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any

from neocloud.cli.resources.people import users
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError

NOT_KNOWN = "not known"
"""An account of which nothing is known; no name has a blank."""
_SERVICE_ACCOUNTS = "nebius.iam.v1.ServiceAccountService"
_UNREADABLE = frozenset({"NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNIMPLEMENTED"})


class By(StrEnum):
    RESOURCE = "resource"
    DAY = "day"
    SKU = "sku"
    PROJECT = "project"
    PRODUCT = "product"
    ACCOUNT = "account"


def summed(lines: Iterable[Any], by: By, names: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Rows of the report: quantities and costs added up over everything but `by`, SKU and price."""
    totals: dict[tuple[str, ...], tuple[Decimal, Decimal | None]] = {}
    for line in lines:
        sku = f"{line.sku}, credit" if line.HasField("credit") else line.sku
        key = (_group(line, by, names), sku, line.unit, line.unit_price)
        quantity, cost = totals.get(key, (Decimal(0), Decimal(0)))
        totals[key] = (quantity + Decimal(line.quantity), added(cost, line))
    return [
        (group, sku, f"{quantity}", unit, price, cost_text(cost))
        for (group, sku, unit, price), (quantity, cost) in sorted(totals.items())
    ]


def subtotals(lines: Iterable[Any], by: By, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each group with the sum of its lines that have a price; none where no group has several rows.

    A credit belongs to the resource that it is a part of.
    """
    sums: dict[str, Decimal] = {}
    rows: dict[str, set[tuple[str, str]]] = {}
    unpriced: set[str] = set()
    for line in lines:
        group = line.resource_name or line.resource_id if by is By.RESOURCE else _group(line, by, names)
        sums[group] = sums.get(group, Decimal(0)) + (Decimal(0) if line.is_unpriced else Decimal(line.cost))
        rows.setdefault(group, set()).add((line.sku, line.unit_price))
        unpriced |= {group} if line.is_unpriced else set()
    if all(len(each) == 1 for each in rows.values()):
        return []
    return [
        (group, f"{cost}, and what has no price" if group in unpriced else f"{cost}")
        for group, cost in sorted(sums.items())
    ]


def _group(line: Any, by: By, names: Mapping[str, str]) -> str:
    groups = {
        By.RESOURCE: _named(line),
        By.DAY: line.day,
        By.SKU: line.sku,
        By.PROJECT: line.parent_id,
        By.PRODUCT: line.product or "-",
        By.ACCOUNT: names.get(line.account_id, line.account_id) or NOT_KNOWN,
    }
    return groups[by]


def _named(line: Any) -> str:
    """Return the resource, and why a part of it is not charged."""
    name = line.resource_name or line.resource_id
    return f"{name}/{line.credit.part}: {why(line.credit)}" if line.HasField("credit") else name


def why(cause: Any) -> str:
    return f"{cause.cause} {cause.evidence}".strip()


def added(cost: Decimal | None, line: Any) -> Decimal | None:
    """Return the sum, or None if any line has no price."""
    return None if line.is_unpriced or cost is None else cost + Decimal(line.cost)


def cost_text(cost: Decimal | None) -> str:
    return "no price" if cost is None else f"{cost}"


def account_names(client: Client, tenant_id: str, account_ids: Iterable[str]) -> Mapping[str, str]:
    """Return the names and e-mail addresses of accounts that the caller may see, which no two share."""
    wanted = sorted(set(account_ids) - {""})
    people = [each for each in wanted if not each.startswith("serviceaccount-")]
    found = {**_service_accounts(client, wanted), **(_people(client, tenant_id) if people else {})}
    named = {each: found[each] for each in wanted if found.get(each)}
    names = list(named.values())
    return {each: name for each, name in named.items() if names.count(name) == 1}


def _service_accounts(client: Client, account_ids: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for each in account_ids:
        if each.startswith("serviceaccount-"):
            try:
                found[each] = client.call(f"{_SERVICE_ACCOUNTS}/Get", {"id": each}).metadata.name
            except ClientError as error:
                if error.code not in _UNREADABLE:
                    raise
    return found


def _people(client: Client, tenant_id: str) -> Mapping[str, str]:
    try:
        listed = list(users(client, tenant_id))
    except ClientError as error:
        if error.code not in _UNREADABLE:
            raise
        return {}
    return {each.tenant_user_account.metadata.id: each.attributes.email for each in listed}
