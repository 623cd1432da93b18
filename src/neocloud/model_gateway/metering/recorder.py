"""Record the usage of requests: rate limits, budgets and the ledger together, on the terms of their routes.

`open` and `close` are called for every request and cost microseconds; only a project with a budget waits for
the disk.
"""

from collections.abc import Sequence
from typing import NamedTuple

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.messages.neocloud.inference.v1 import ListRoutesResponse, Route
from neocloud.model_gateway.api.errors import OpenAiError, unavailable
from neocloud.model_gateway.metering.balances import (
    FREE,
    BudgetBalance,
    BudgetBalances,
    Price,
    from_dollars,
    price_of,
)
from neocloud.model_gateway.metering.ledger import Ledger, LedgerUnavailable
from neocloud.model_gateway.metering.ledger_tables import NO_PRICE, RequestEnd, Reservation
from neocloud.model_gateway.metering.limits import Bucket, RateLimits
from neocloud.model_gateway.metering.usage import RequestStart, TokenUsage

_BY_HOUR: int = contract.enum("neocloud.inference.v1.DeploymentSpec.Charge").Value("BY_HOUR")
_UNPRICED = Price(NO_PRICE, NO_PRICE, NO_PRICE)
_NO_USAGE = TokenUsage(0, 0, 0)
_MAX_TOKENS = 10**10
"""Most tokens of a request. Larger numbers of a model server are cut, so that sums fit into the ledger."""


class Terms(NamedTuple):
    """Limits and price of one deployment. A limit of 0 is none; a price of None is unknown."""

    requests_per_minute: int
    tokens_per_minute: int
    price: Price | None


class UsageRecorder:
    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._terms: dict[str, Terms] = {}
        self._limits = RateLimits(clock)
        self._balances = BudgetBalances(ledger.spent)

    def update_terms(self, routes: ListRoutesResponse) -> None:
        """Apply the terms of an inference.v1.ListRoutesResponse to new requests."""
        self._terms = {route.deployment_id: _terms(route) for route in routes.routes}
        limits: dict[str, int] = {}
        for budget in routes.budgets:
            limit = from_dollars(budget.monthly_limit)
            limits[budget.project_id] = min(limit, limits.get(budget.project_id, limit))
        self._balances.set_limits(limits)
        self._limits.remove_idle()

    async def open(self, start: RequestStart) -> "RequestRecord":
        """Admit a request and record its start.

        Raises OpenAiError: 429 rate_limit_exceeded with Retry-After, 429 insufficient_quota for a budget, 503
        ledger_unavailable when usage cannot be recorded.
        """
        ledger = self._ledger
        if ledger.problem or ledger.is_full:
            raise _ledger_unavailable()
        terms = self._terms.get(start.deployment_id)
        if terms is None:
            raise unavailable(
                f"The deployment of {start.model_name} is being removed or moved. Try again.", retry_after=1
            )
        now = int(self._clock.now().timestamp() * 1000)
        balance = self._balances.get(start.project_id)
        record = RequestRecord(self, start.request_id, terms.price or FREE, balance)
        if not start.is_batch:
            record.bucket, record.reserved_tokens = self._limits.take(
                start, terms.requests_per_minute, terms.tokens_per_minute
            )
            record.headers = record.bucket.headers()
        try:
            record.reserved_cost = self._balances.reserve(balance, start, terms.price, now)
        except OpenAiError:
            record.cancel()
            raise
        row = _reservation(start, terms.price, now)
        if balance.limit is None or not record.reserved_cost:
            ledger.write(row)
        else:
            await self._write_and_wait(record, row)
        return record

    async def flush(self) -> None:
        """Return when the ledger has everything that happened so far."""
        await self._ledger.flush()

    def finish(self, record: "RequestRecord", usage: TokenUsage | None, outcome: str) -> None:
        """Settle limits and budget and record the end. Called once by each record."""
        now = int(self._clock.now().timestamp() * 1000)
        used = _plausible(usage) if usage is not None else _NO_USAGE
        if record.bucket is not None:
            if usage is None:
                self._limits.release(record.bucket, record.reserved_tokens)
            else:
                self._limits.correct(record.bucket, record.reserved_tokens, used.input + used.output)
        self._balances.settle(record.balance, record.reserved_cost, record.price.cost(used), now)
        self._ledger.write(
            RequestEnd(
                record.request_id,
                now,
                used.input,
                used.cached_input,
                used.output,
                outcome,
                int(used.is_estimated),
            )
        )

    def release(self, record: "RequestRecord") -> None:
        """Return the reservations of a request that was refused before anything was written."""
        if record.bucket is not None:
            self._limits.release(record.bucket, record.reserved_tokens)
        record.balance.reserved -= record.reserved_cost

    async def _write_and_wait(self, record: "RequestRecord", row: Reservation) -> None:
        try:
            await self._ledger.write_and_wait(row)
        except LedgerUnavailable:
            record.cancel()
            raise _ledger_unavailable() from None
        except BaseException:
            record.close(None, "client_left")
            raise


class RequestRecord:
    """The record of one request in progress. `close` returns its reservations of limits and budget."""

    __slots__ = (
        "_is_closed",
        "_recorder",
        "balance",
        "bucket",
        "headers",
        "price",
        "request_id",
        "reserved_cost",
        "reserved_tokens",
    )

    def __init__(
        self, recorder: UsageRecorder, request_id: str, price: Price, balance: BudgetBalance
    ) -> None:
        self._recorder = recorder
        self._is_closed = False
        self.request_id = request_id
        self.price = price
        self.balance = balance
        self.bucket: Bucket | None = None
        self.reserved_tokens = self.reserved_cost = 0
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        """x-ratelimit-*, to be sent before the body."""

    def close(self, usage: TokenUsage | None, outcome: str) -> None:
        """Record what the request used; None when nothing was computed. Only the first call counts.

        `outcome` is "ok", "client_left", "replica_lost" or "refused".
        """
        if not self._is_closed:
            self._is_closed = True
            self._recorder.finish(self, usage, outcome)

    def cancel(self) -> None:
        """Return all reservations; nothing is recorded."""
        if not self._is_closed:
            self._is_closed = True
            self._recorder.release(self)


def _terms(route: Route) -> Terms:
    price = FREE if route.charge == _BY_HOUR else price_of(route.price)
    return Terms(route.limits.requests_per_minute, route.limits.tokens_per_minute, price)


def _reservation(start: RequestStart, price: Price | None, now: int) -> Reservation:
    return Reservation(
        start.request_id,
        start.tenant_id,
        start.project_id,
        start.subject_id,
        start.deployment_id,
        start.model_name,
        *(price or _UNPRICED),
        start.input_tokens,
        start.max_output_tokens,
        now,
    )


def _plausible(usage: TokenUsage) -> TokenUsage:
    """Return usage with numbers that are not negative, not excessive, and no more cached input than input."""
    if 0 <= usage.cached_input <= usage.input <= _MAX_TOKENS and 0 <= usage.output <= _MAX_TOKENS:
        return usage
    tokens = min(max(usage.input, 0), _MAX_TOKENS)
    output = min(max(usage.output, 0), _MAX_TOKENS)
    return TokenUsage(tokens, min(max(usage.cached_input, 0), tokens), output, is_estimated=True)


def _ledger_unavailable() -> OpenAiError:
    """Return the error of requests that cannot be recorded; the reason is in the log."""
    return unavailable(
        "The gateway cannot record usage: its disk is full or failing. Requests are rejected until it"
        " can. Try again, and contact your administrator if this persists.",
        retry_after=5,
        code="ledger_unavailable",
    )
