"""The accounts of all requests: limits, budgets and the ledger together, on the terms that routes say.

`open` and `close` are on the way of every request and cost microseconds; only a project with a budget waits
for the disk.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.gateway.accounts.base import Account, Opening, TokenUsage
from neocloud.gateway.accounts.budgets import Budgets, Purse
from neocloud.gateway.accounts.entries import Closing, Reservation
from neocloud.gateway.accounts.ledger import Ledger, NotWritten
from neocloud.gateway.accounts.limits import Bucket, Limits
from neocloud.gateway.accounts.prices import FREE, Price, from_dollars, price_of
from neocloud.gateway.accounts.schema import NO_PRICE
from neocloud.gateway.errors import OpenAiError, unavailable

_BY_HOUR = contract.enum("neocloud.inference.v1.DeploymentSpec.Charge").Value("BY_HOUR")
_UNPRICED = Price(NO_PRICE, NO_PRICE, NO_PRICE)
_NOTHING = TokenUsage(0, 0, 0)
_MOST_TOKENS = 10**10
"""No request has more. An engine that says so is not believed, so that sums fit into the ledger."""


class Terms(NamedTuple):
    requests_per_minute: int
    tokens_per_minute: int
    price: Price | None


class AccountBook:
    """The `Accounts` of the gateway."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._terms: dict[str, Terms] = {}
        self._limits = Limits(clock)
        self._budgets = Budgets(ledger.spent)

    def follow(self, routes: Any) -> None:
        """These are the terms from now on: an inference.v1.ListRoutesResponse. Open accounts keep theirs."""
        self._terms = {route.deployment_id: _terms(route) for route in routes.routes}
        least: dict[str, int] = {}
        for budget in routes.budgets:
            limit = from_dollars(budget.monthly_limit)
            least[budget.project_id] = min(limit, least.get(budget.project_id, limit))
        self._budgets.limit(least)
        self._limits.forget_idle()

    async def open(self, opening: Opening) -> Account:
        ledger = self._ledger
        if ledger.problem or ledger.is_full:
            raise _not_written()
        terms = self._terms.get(opening.deployment_id)
        if terms is None:
            raise unavailable(
                f"The deployment of {opening.model_name} is being removed or moved. Try again.", retry_after=1
            )
        now = int(self._clock.now().timestamp() * 1000)
        account = _Account(self, opening.request_id, terms.price or FREE)
        purse = account.purse = self._budgets.purse(opening.project_id)
        if not opening.is_batch:
            taken = self._limits.take(opening, terms.requests_per_minute, terms.tokens_per_minute)
            account.bucket, account.set_aside = taken
            account.headers = account.bucket.headers()
        try:
            account.reserved = self._budgets.reserve(purse, opening, terms.price, now)
        except OpenAiError:
            account.return_all()
            raise
        row = _reservation(opening, terms.price, now)
        if purse.limit is None or not account.reserved:
            ledger.write(row)
        else:
            await self._write_now(account, row)
        return account

    async def flush(self) -> None:
        """Returns when the ledger has all that happened so far."""
        await self._ledger.flush()

    def settle(self, account: "_Account", usage: TokenUsage | None, outcome: str) -> None:
        """Called once for each account, by itself."""
        now = int(self._clock.now().timestamp() * 1000)
        used = _believed(usage) if usage is not None else _NOTHING
        if account.bucket is not None:
            if usage is None:
                self._limits.give_back(account.bucket, account.set_aside)
            else:
                self._limits.correct(account.bucket, account.set_aside, used.input + used.output)
        self._budgets.settle(account.purse, account.reserved, account.price.cost(used), now)
        self._ledger.write(
            Closing(
                account.request_id,
                now,
                used.input,
                used.cached_input,
                used.output,
                outcome,
                int(used.is_estimated),
            )
        )

    def forget(self, account: "_Account") -> None:
        """It was refused before anything was written."""
        if account.bucket is not None:
            self._limits.give_back(account.bucket, account.set_aside)
        account.purse.reserved -= account.reserved

    async def _write_now(self, account: "_Account", row: Reservation) -> None:
        try:
            await self._ledger.write_now(row)
        except NotWritten:
            account.return_all()
            raise _not_written() from None
        except BaseException:
            account.close(None, "client_left")
            raise


class _Account:
    """One request's `Account`. What it took of limits and budget goes back on `close`."""

    __slots__ = (
        "_book",
        "_is_closed",
        "bucket",
        "headers",
        "price",
        "purse",
        "request_id",
        "reserved",
        "set_aside",
    )

    purse: Purse

    def __init__(self, book: AccountBook, request_id: str, price: Price) -> None:
        self._book = book
        self._is_closed = False
        self.request_id = request_id
        self.price = price
        self.bucket: Bucket | None = None
        self.set_aside = self.reserved = 0
        self.headers: Sequence[tuple[bytes, bytes]] = ()

    def close(self, usage: TokenUsage | None, outcome: str) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._book.settle(self, usage, outcome)

    def return_all(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._book.forget(self)


def _terms(route: Any) -> Terms:
    price = FREE if route.charge == _BY_HOUR else price_of(route.price)
    return Terms(route.limits.requests_per_minute, route.limits.tokens_per_minute, price)


def _reservation(opening: Opening, price: Price | None, now: int) -> Reservation:
    return Reservation(
        opening.request_id,
        opening.tenant_id,
        opening.project_id,
        opening.subject_id,
        opening.deployment_id,
        opening.model_name,
        *(price or _UNPRICED),
        opening.input_tokens,
        opening.max_output_tokens,
        now,
    )


def _believed(usage: TokenUsage) -> TokenUsage:
    """Whole, never negative, and no more in the cache than there was."""
    if 0 <= usage.cached_input <= usage.input <= _MOST_TOKENS and 0 <= usage.output <= _MOST_TOKENS:
        return usage
    tokens = min(max(usage.input, 0), _MOST_TOKENS)
    output = min(max(usage.output, 0), _MOST_TOKENS)
    return TokenUsage(tokens, min(max(usage.cached_input, 0), tokens), output, is_estimated=True)


def _not_written() -> OpenAiError:
    """Why, the operator finds in the log."""
    return unavailable(
        "The gateway cannot record usage: its disk is full or failing. Requests are rejected until it"
        " can. Try again, and contact your administrator if this persists.",
        retry_after=5,
        code="ledger_unavailable",
    )
