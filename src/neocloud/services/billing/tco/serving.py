"""What a conversation costs on the cluster, and from how many on that beats a hosted model."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal

SECONDS_PER_DAY = 86_400
DAYS_PER_MONTH = 30
"""Of the published table, which is apart from the 730 hours that nodes are charged for."""
_MILLION = 1_000_000
_TWO_DIGITS = Context(prec=2, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Conversation:
    """How many tokens one reads and generates."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Costs:
    """What a month costs: all of it, and the one worker that serves."""

    month: Decimal
    worker: Decimal


@dataclass(frozen=True)
class Throughput:
    """What a speed comes to in a day."""

    tokens_per_second: Decimal
    tokens_per_day: int
    conversations_per_day: int

    def cost_per_chat(self, month: Decimal) -> Decimal | None:
        """None where not one conversation a day is reached."""
        return month / DAYS_PER_MONTH / self.conversations_per_day if self.conversations_per_day else None


@dataclass(frozen=True)
class Hosted:
    """A model that somebody else serves, by the million of tokens."""

    name: str
    input_price: Decimal
    output_price: Decimal

    def cost_per_chat(self, chat: Conversation) -> Decimal:
        tokens = chat.input_tokens * self.input_price + chat.output_tokens * self.output_price
        return tokens / _MILLION


def published_cost(maximum: Decimal) -> Decimal:
    """The published table counts with "about $19K": the most that the month may cost, to two digits."""
    return Decimal(int(_TWO_DIGITS.create_decimal(maximum)))


def throughput(tokens_per_second: Decimal, chat: Conversation) -> Throughput:
    per_day = int((tokens_per_second * SECONDS_PER_DAY).to_integral_value(ROUND_FLOOR))
    conversations = per_day // chat.output_tokens if chat.output_tokens else 0
    return Throughput(tokens_per_second, per_day, conversations)


def break_even(month: Decimal, hosted: Hosted, chat: Conversation) -> tuple[int, Decimal] | None:
    """Conversations a day from which on the month is the cheaper way, and the tokens a second that they take;
    None where the hosted model is free."""
    price = hosted.cost_per_chat(chat)
    if not price:
        return None
    conversations = int((month / DAYS_PER_MONTH / price).to_integral_value(ROUND_CEILING))
    return conversations, Decimal(conversations * chat.output_tokens) / SECONDS_PER_DAY


def reached(speeds: Sequence[Throughput]) -> int:
    """The most conversations a day that any of the scenarios gets to."""
    return max((each.conversations_per_day for each in speeds), default=0)
