"""Prices of tokens, and monthly budgets (UTC) of projects: reserved before a request, settled afterwards.

Amounts are integers internally and Decimal outside, so nothing is ever rounded: a price has at most eight
decimals of a dollar per million tokens, so a token costs an integer number of 1e-14 dollars.

The reservation is the highest possible cost, so concurrent requests cannot exceed a budget together. The
input is estimated until the model server has counted it: a project can exceed its budget by the error of the
estimates, and is then refused. A project with a budget cannot call a model without a price.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

from neocloud.messages.neocloud.inference.v1 import TokenPrice
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.metering.usage import RequestStart, TokenUsage

_TOKEN_DECIMALS = 14
_PRICE_DECIMALS = 8


class Price(NamedTuple):
    """Prices of one token, in 1e-14 dollars."""

    input: int
    cached_input: int
    output: int

    def cost(self, usage: TokenUsage) -> int:
        fresh = usage.input - usage.cached_input
        return fresh * self.input + usage.cached_input * self.cached_input + usage.output * self.output

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """Return the highest possible cost of a request."""
        return input_tokens * max(self.input, self.cached_input) + output_tokens * self.output


FREE = Price(0, 0, 0)


def price_of(message: TokenPrice) -> Price | None:
    """Return the price of an inference.v1.TokenPrice; None when it is empty.

    A part that is missing costs nothing, but cached input costs as much as other input.
    """
    if not (message.input or message.output):
        return None
    return Price(
        per_token(message.input), per_token(message.cached_input or message.input), per_token(message.output)
    )


def per_token(price: str) -> int:
    """Convert from dollars per million tokens."""
    return int(Decimal(price or 0).scaleb(_PRICE_DECIMALS))


def per_million(price: int) -> Decimal:
    """Return dollars per million tokens, without superfluous zeros."""
    return _plain(Decimal(price).scaleb(-_PRICE_DECIMALS))


def from_dollars(amount: str) -> int:
    return int(Decimal(amount).scaleb(_TOKEN_DECIMALS))


def to_dollars(amount: int) -> Decimal:
    return _plain(Decimal(amount).scaleb(-_TOKEN_DECIMALS))


def _plain(amount: Decimal) -> Decimal:
    short = amount.normalize()
    return short if int(short.as_tuple().exponent) <= -2 else amount.quantize(Decimal("0.01"))


class BudgetBalance:
    """The budget of one project, in 1e-14 dollars."""

    __slots__ = ("limit", "project_id", "reserved", "spent")

    def __init__(self, project_id: str) -> None:
        self.project_id = project_id
        self.limit: int | None = None
        self.reserved = 0
        self.spent: dict[str, int] = {}
        """Spending by month."""


class BudgetBalances:
    """The balances of all projects, including those without a budget, which may get one later."""

    def __init__(self, spent: Mapping[tuple[str, str], int]) -> None:
        """`spent` is the spending in the ledger, by project and month."""
        self._balances: dict[str, BudgetBalance] = {}
        self._calendar = Calendar()
        for (project_id, month), amount in spent.items():
            self.get(project_id).spent[month] = amount

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Replace all budgets, given by project."""
        for project_id in limits:
            self.get(project_id)
        for balance in self._balances.values():
            balance.limit = limits.get(balance.project_id)

    def get(self, project_id: str) -> BudgetBalance:
        balance = self._balances.get(project_id)
        if balance is None:
            balance = self._balances[project_id] = BudgetBalance(project_id)
        return balance

    def reserve(self, balance: BudgetBalance, start: RequestStart, price: Price | None, at_ms: int) -> int:
        """Reserve the highest possible cost and return it. Raises OpenAiError 429 when the budget is
        too low."""
        if price is None:
            if balance.limit is not None:
                raise _unpriced(start)
            return 0
        cost = price.most(start.input_tokens, start.max_output_tokens)
        if balance.limit is not None and cost:
            left = balance.limit - balance.spent.get(self._calendar.month(at_ms), 0) - balance.reserved
            if cost > left:
                raise _exhausted(balance, start, cost, left)
        balance.reserved += cost
        return cost

    def settle(self, balance: BudgetBalance, reserved: int, cost: int, at_ms: int) -> None:
        balance.reserved -= reserved
        if cost:
            month = self._calendar.month(at_ms)
            balance.spent[month] = balance.spent.get(month, 0) + cost


class Calendar:
    """Converts milliseconds to months; fast for consecutive moments of one month."""

    def __init__(self) -> None:
        self._from = self._until = 0
        self._month = ""

    def month(self, at_ms: int) -> str:
        if not self._from <= at_ms < self._until:
            day = datetime.fromtimestamp(at_ms / 1000, UTC)
            self._from = _start(day.year, day.month)
            self._until = _start(day.year + day.month // 12, day.month % 12 + 1)
            self._month = f"{day:%Y-%m}"
        return self._month


def _start(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000


def _unpriced(start: RequestStart) -> OpenAiError:
    return _insufficient_quota(
        f"{start.model_name} has no price, so the budget of the project {start.project_id} cannot be"
        " enforced. Set a price (`neo deployment price NAME 0.10/0.40`, or 0 if it is free), or remove the"
        " budget."
    )


def _exhausted(balance: BudgetBalance, start: RequestStart, cost: int, left: int) -> OpenAiError:
    limit, rest = to_dollars(balance.limit or 0), to_dollars(max(0, left))
    return _insufficient_quota(
        f"The project {start.project_id} has a budget of ${limit} this month (UTC), of which ${rest} is"
        f" left. This request may cost up to ${to_dollars(cost)}. Lower max_tokens, wait for requests in"
        " progress to finish, or raise the budget."
    )


def _insufficient_quota(message: str) -> OpenAiError:
    """Return a 429 that OpenAI clients do not retry; by default they retry it."""
    return OpenAiError(
        429,
        message,
        type="insufficient_quota",
        code="insufficient_quota",
        headers={"x-should-retry": "false"},
    )
