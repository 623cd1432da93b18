"""The figures of a plan: its items priced, and the cost of a conversation on the cluster. FORM-01, FORM-02.

The published table rounds the hourly rate of a node to cents and each row to whole dollars, half to even; its
maximum is the printed minimum times the ratio of units. Rows have these figures and the unrounded ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal

from neocloud.services.billing.rules.price_list import HOURS_PER_MONTH, PriceList, Unit
from neocloud.services.billing.tco.plan import Item, Values
from neocloud.services.compute.public import preset

CENT = Decimal("0.01")
_WHOLE = Decimal(1)


class NoPrice(Exception):
    """An item has no price; the message says why and what to do."""

    def __init__(self, item: Item, message: str) -> None:
        super().__init__(f"{item.name}: {message}")
        self.item = item


@dataclass(frozen=True)
class Row:
    item: Item
    unit: str
    rate: Decimal
    """The price of one unit, as printed."""
    exact_rate: Decimal
    unit_month: Decimal
    """The cost of one unit in a month, at the printed rate and not rounded."""

    @property
    def minimum(self) -> Decimal:
        return dollars(self.exact_minimum)

    @property
    def maximum(self) -> Decimal:
        """The printed minimum scaled up; without a minimum, the rounded exact maximum."""
        if not self.item.count:
            return dollars(self.exact_maximum)
        return dollars(self.minimum * self.item.most / self.item.count)

    @property
    def exact_minimum(self) -> Decimal:
        return self.item.count * self.unit_month

    @property
    def exact_maximum(self) -> Decimal:
        return self.item.most * self.unit_month


@dataclass(frozen=True)
class Totals:
    minimum: Decimal
    maximum: Decimal
    exact_minimum: Decimal
    exact_maximum: Decimal


def dollars(amount: Decimal) -> Decimal:
    return amount.quantize(_WHOLE, ROUND_HALF_EVEN)


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def priced(item: Item, prices: PriceList, day: date) -> Row:
    """Return the row of an item. Raises NoPrice."""
    if item.platform:
        return _node(item, prices, day)
    if item.sku:
        return _storage(item, prices, day)
    return Row(item, "", Decimal(0), Decimal(0), Decimal(0))


def totals(rows: Sequence[Row]) -> Totals:
    return Totals(
        minimum=sum((row.minimum for row in rows), Decimal(0)),
        maximum=sum((row.maximum for row in rows), Decimal(0)),
        exact_minimum=sum((row.exact_minimum for row in rows), Decimal(0)),
        exact_maximum=sum((row.exact_maximum for row in rows), Decimal(0)),
    )


def _node(item: Item, prices: PriceList, day: date) -> Row:
    try:
        exact = prices.node_rate(preset(item.platform, item.preset), day)
    except LookupError as error:
        raise NoPrice(item, str(error)) from error
    rate = cents(exact)
    return Row(item, "node-hour", rate, exact, rate * HOURS_PER_MONTH)


def _storage(item: Item, prices: PriceList, day: date) -> Row:
    sku = prices.skus.get(item.sku)
    rate = sku.price_on(day) if sku is not None and sku.unit is Unit.GIB_MONTH else None
    if rate is None:
        known = ", ".join(sorted(each.name for each in prices.skus.values() if each.unit is Unit.GIB_MONTH))
        raise NoPrice(item, f"{item.sku} has no price by the GiB and month; SKUs with one: {known}")
    return Row(item, "gib-month", rate, rate, item.gib * rate)


SECONDS_PER_DAY = 86_400
DAYS_PER_MONTH = 30
"""The same number as in the published table; nodes are charged for 730 hours."""
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


_SLOWER = Decimal("83.469")
"""Per cent by which the fine-tuned model was slower than its base in the published sample report."""
SINGLE_SPEED = Decimal("3.8")
TARGET_SPEED = Decimal(200)


@dataclass(frozen=True)
class Note:
    about: str
    text: str


def of_rows(rows: Sequence[Row], sums: Totals, chosen: Values) -> Iterator[Note]:
    for row in rows:
        if row.maximum != dollars(row.exact_maximum):
            yield Note(
                row.item.name,
                f"The maximum is printed as the rounded minimum times {row.item.most} / {row.item.count}, "
                f"${row.maximum}; exactly it is ${cents(row.exact_maximum)}.",
            )
    yield Note(
        "",
        f"The total adds up what the rows print. Not rounded it is ${cents(sums.exact_minimum):,} to "
        f"${cents(sums.exact_maximum):,}; a bill of this cloud does not round hourly rates either: "
        f"${cents(_billed(rows, is_maximum=False)):,} to ${cents(_billed(rows, is_maximum=True)):,}.",
    )
    yield from _backups(rows, chosen)


def _billed(rows: Sequence[Row], *, is_maximum: bool) -> Decimal:
    total = Decimal(0)
    for row in rows:
        month = row.exact_rate * HOURS_PER_MONTH if row.unit == "node-hour" else row.unit_month
        total += month * (row.item.most if is_maximum else row.item.count)
    return total


def _backups(rows: Sequence[Row], chosen: Values) -> Iterator[Note]:
    kept, each, jail = (chosen.number(name) for name in ("backups", "backup_gib", "jail_gib"))
    row = next(row for row in rows if row.item.name == "jail backups")
    if kept and each > jail:
        would_be = cents(kept * jail * row.exact_rate)
        yield Note(
            row.item.name,
            f"Counts {kept} x {each} GiB though the shared root holds {jail} GiB; {kept} x {jail} GiB would "
            f"be ${would_be}. Set backup_gib={jail} to count that.",
        )


def of_serving(chosen: Values, month: Decimal) -> Iterator[Note]:
    workers, training = chosen.number("workers"), chosen.number("training_workers")
    if workers > 1:
        busy = (
            f"{min(training, workers - 1)} of {workers} workers train"
            if training
            else f"{workers} workers run"
        )
        yield Note(
            "cost per chat",
            f"Charges the whole month (${month:,}) to what one worker serves, while {busy}; the column "
            "beside it charges one worker alone. Neither counts the time that reading the context takes.",
        )
    read, generated = chosen.number("input_tokens"), chosen.number("output_tokens")
    yield Note(
        "conversation",
        f"A conversation reads {read:,} tokens and generates {generated:,}; a month has {HOURS_PER_MONTH} "
        "hours in rows and 30 days here. The speed is kept up day and night.",
    )


def of_published_speeds() -> Iterator[Note]:
    """Comment on the three published scenarios."""
    base = cents(SINGLE_SPEED / (1 - _SLOWER / 100))
    yield Note(
        "optimised target",
        f"The sample report says that the fine-tuned model was {_SLOWER} % slower. With {SINGLE_SPEED} "
        f"tokens/s that puts the base at {base}, not near {TARGET_SPEED}; the target was not measured. "
        "Measure yours: neo tco --measure MODEL.",
    )


def of_hosted(
    hosted: Sequence[Hosted], month: Decimal, speeds: Sequence[Throughput], chat: Conversation
) -> Iterator[Note]:
    best = reached(speeds)
    beyond = [each for each in hosted if (even := break_even(month, each, chat)) and even[0] > best]
    if beyond:
        yield Note(
            "break-even",
            f"{len(beyond)} of {len(hosted)} hosted models are cheaper than the whole month at any speed of "
            f"the table (at most {best:,} conversations a day).",
        )


def of_claims() -> Iterator[Note]:
    yield Note(
        "",
        "Published claims of 20 to 25 % lower cost of owning GPUs than an average provider's, and of half "
        "the price of major clouds, are marketing: nothing here reproduces them.",
    )
