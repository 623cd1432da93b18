"""The border between the proxy and the accounts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one request."""

    input: int
    cached_input: int
    """Of the input: found in the engine's cache."""
    output: int
    is_estimated: bool = False
    """Counted by us, as the engine did not get to tell: the client left, or a replica died."""


@dataclass(frozen=True)
class Opening:
    """What is known of a request before it is sent on."""

    request_id: str
    tenant_id: str
    project_id: str
    """Who pays."""
    subject_id: str
    deployment_id: str
    model_name: str
    """As the client said it: the price list and the usage report know it by this name."""
    input_tokens: int
    """Estimated; what limits and budgets set aside."""
    max_output_tokens: int
    is_batch: bool = False
    """Batches take no part of the live limits."""


class Account(Protocol):
    """One request's. `close` may be called again; only the first counts."""

    headers: Sequence[tuple[bytes, bytes]]
    """x-ratelimit-*, to be sent before the body."""

    def close(self, usage: TokenUsage | None, outcome: str) -> None:
        """What it really took; None when nothing was computed, e.g. no replica took it. Gives back what was
        set aside and writes the ledger. `outcome`: "ok", "client_left", "replica_lost", "refused"."""
        ...


class Accounts(Protocol):
    async def open(self, opening: Opening) -> Account:
        """Raises OpenAiError: 429 rate_limit_exceeded with Retry-After, 429 insufficient_quota for a budget,
        503 ledger_unavailable when usage cannot be written down."""
        ...
