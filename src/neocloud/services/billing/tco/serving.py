"""The cost of a conversation on the cluster, and the break-even with hosted models."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal

SECONDS_PER_DAY = 86_400
DAYS_PER_MONTH = 30
"""As in the published table; nodes are charged for 730 hours."""
_MILLION = 1_000_000
_TWO_DIGITS = Context(prec=2, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Conversation:
    """The tokens that a conversation reads and generates."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Costs:
    """The costs of a month: of everything, and of the one worker that serves."""

    month: Decimal
    worker: Decimal


@dataclass(frozen=True)
class Throughput:
    """The daily throughput of a speed."""

    tokens_per_second: Decimal
    tokens_per_day: int
    conversations_per_day: int

    def cost_per_chat(self, month: Decimal) -> Decimal | None:
        """Return the cost of one conversation; None where the speed is too low for one a day."""
        return month / DAYS_PER_MONTH / self.conversations_per_day if self.conversations_per_day else None


@dataclass(frozen=True)
class Hosted:
    """A hosted model, with prices per million tokens."""

    name: str
    input_price: Decimal
    output_price: Decimal

    def cost_per_chat(self, chat: Conversation) -> Decimal:
        tokens = chat.input_tokens * self.input_price + chat.output_tokens * self.output_price
        return tokens / _MILLION


def published_cost(maximum: Decimal) -> Decimal:
    """Return the month's cost as the published table has it ("about $19K"): the maximum, to two digits."""
    return Decimal(int(_TWO_DIGITS.create_decimal(maximum)))


def throughput(tokens_per_second: Decimal, chat: Conversation) -> Throughput:
    per_day = int((tokens_per_second * SECONDS_PER_DAY).to_integral_value(ROUND_FLOOR))
    conversations = per_day // chat.output_tokens if chat.output_tokens else 0
    return Throughput(tokens_per_second, per_day, conversations)


def break_even(month: Decimal, hosted: Hosted, chat: Conversation) -> tuple[int, Decimal] | None:
    """Return from how many conversations a day the cluster is cheaper, and the tokens a second that they
    take; None where the hosted model is free."""
    price = hosted.cost_per_chat(chat)
    if not price:
        return None
    conversations = int((month / DAYS_PER_MONTH / price).to_integral_value(ROUND_CEILING))
    return conversations, Decimal(conversations * chat.output_tokens) / SECONDS_PER_DAY


def reached(speeds: Sequence[Throughput]) -> int:
    """Return the most conversations a day of all scenarios."""
    return max((each.conversations_per_day for each in speeds), default=0)
