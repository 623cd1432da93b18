"""Attribute lines of a bill to accounts, and compute the parts of a total. Pure.

Tokens are their callers'. Anything else is whose account created the resource, or the resource that made it.
Lines of unknown origin have no account; nothing is guessed. Lines are divided in millionths, so that the
parts of a line add up to it exactly.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from neocloud.core.usage import CallerUsage
from neocloud.services.billing.rules.cost import DECIMALS, Line, total

NOT_KNOWN = ""
_MOST_OWNERS = 5
"""How far a resource may be from the one that an account created."""

LineKey = tuple[str, str, str, date, Decimal | None]


@dataclass(frozen=True)
class AccountLine:
    line: Line
    account_id: str


@dataclass(frozen=True)
class Subtotal:
    key: str
    cost: Decimal
    has_unpriced: bool


def callers_by_line(usage: Iterable[CallerUsage]) -> Mapping[LineKey, Mapping[str, int]]:
    """Return how much each account used, by the line of the bill that it is in."""
    found: dict[LineKey, dict[str, int]] = {}
    for each in usage:
        key = (each.resource_id, each.parent_id, each.sku, each.day, each.unit_price)
        counts = found.setdefault(key, {})
        counts[each.account_id] = counts.get(each.account_id, 0) + each.count
    return found


def by_account(
    lines: Iterable[Line],
    creator_of: Callable[[str], str],
    callers: Mapping[LineKey, Mapping[str, int]],
    is_called: Callable[[Line], bool],
) -> Sequence[AccountLine]:
    """Return the lines in the same order, those of what is called one for each caller."""
    found: list[AccountLine] = []
    for line in lines:
        if not is_called(line):
            found.append(AccountLine(line, creator_of(line.resource_id)))
            continue
        found += _by_caller(line, callers)
    return found


def _by_caller(line: Line, callers: Mapping[LineKey, Mapping[str, int]]) -> Sequence[AccountLine]:
    key = (line.resource_id, line.parent_id, line.sku, line.day, line.sold_at)
    shares = callers.get(key) or {NOT_KNOWN: 1}
    accounts = sorted(shares)
    weights = [shares[account] for account in accounts]
    quantities = divided(line.quantity, weights)
    costs = [None] * len(accounts) if line.cost is None else divided(line.cost, weights)
    return [
        AccountLine(replace(line, quantity=quantity, cost=cost), account)
        for account, quantity, cost in zip(accounts, quantities, costs, strict=True)
    ]


def divided(amount: Decimal, weights: Sequence[int]) -> Sequence[Decimal]:
    """Return parts of an amount in millionths by weight, which add up to it: what is left over by rounding
    down goes to those that lost most by it, the first ones first."""
    sign, digits, exponent = amount.as_tuple()
    assert isinstance(exponent, int) and exponent >= -DECIMALS, "amounts have six decimals at most"
    millionths = int("".join(map(str, digits))) * 10 ** (exponent + DECIMALS)
    whole = sum(weights)
    parts = [divmod(millionths * weight, whole) for weight in weights]
    left = millionths - sum(part for part, _ in parts)
    by_loss = sorted(range(len(parts)), key=lambda index: -parts[index][1])
    raised = set(by_loss[:left])
    return [
        Decimal((-1 if sign else 1) * (part + (index in raised))).scaleb(-DECIMALS)
        for index, (part, _) in enumerate(parts)
    ]


def creators(
    resource_ids: Iterable[str], created_by: Callable[[str], str], owner_of: Callable[[str], str]
) -> Mapping[str, str]:
    """Return the account that created each resource, or the resource that made it; "" where none is known."""
    found: dict[str, str] = {}
    for resource_id in resource_ids:
        at, account = resource_id, NOT_KNOWN
        for _ in range(_MOST_OWNERS):
            account = created_by(at)
            at = owner_of(at)
            if account or not at:
                break
        found[resource_id] = account
    return found


def subtotals(lines: Iterable[tuple[str, Line]]) -> Sequence[Subtotal]:
    """Return the sums of lines by their keys, in the order of the keys."""
    groups: dict[str, list[Line]] = {}
    for key, line in lines:
        groups.setdefault(key, []).append(line)
    return [
        Subtotal(key, total(group), has_unpriced=any(line.cost is None for line in group))
        for key, group in sorted(groups.items())
    ]
