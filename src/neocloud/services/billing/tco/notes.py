"""Notes on the figures: what they leave out, and where the published table is wrong."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from neocloud.services.billing.rules.price_list import HOURS_PER_MONTH
from neocloud.services.billing.tco.figures import (
    Conversation,
    Hosted,
    Row,
    Throughput,
    Totals,
    break_even,
    cents,
    dollars,
    reached,
)
from neocloud.services.billing.tco.plan import Values

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
