"""Use of the machine: what resources hold of it now, and what they consumed.

Each service declares both for its kinds; neither has prices. The meters of a service turn state
history into usage records, which are pure functions of the history, in whole seconds, so a bill can always be
computed again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from math import ceil
from typing import Any, Protocol

from neocloud.core.store.protocol import HistoryEntry, Resource, Transaction

Rows = Mapping[str, Sequence[Resource]]
"""All rows by kind."""
_KEPT_FROM = "usage.kept_from"
"""A counter of the scope "", in seconds since 1970."""


@dataclass(frozen=True)
class CapacityUse:
    """The use of the machine by resources of some kinds."""

    kinds: tuple[str, ...]
    """Kinds whose rows decide it."""
    demands: Callable[[Rows], Iterable[tuple[str, Any]]]
    """Return the id of each holder with what it holds, a `Demand` of compute."""


class CapacityUses(tuple[CapacityUse, ...]):
    """The uses of the machine by all services that are served."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for use in self for kind in use.kinds)

    def demands(self, rows: Rows) -> Iterable[tuple[str, Any]]:
        for use in self:
            yield from use.demands(rows)


def kept_from(tx: Transaction) -> datetime | None:
    """Since when the history of metered resources is whole; None while nothing of it was ever removed."""
    seconds = tx.counters("").get(_KEPT_FROM)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def set_kept_from(tx: Transaction, at: datetime) -> None:
    """Note that entries which were replaced before this time are gone."""
    tx.count("", _KEPT_FROM, ceil(at.timestamp()) - tx.counters("").get(_KEPT_FROM, 0))


@dataclass(frozen=True)
class UsageRecord:
    """`units` of `sku` held for the whole seconds from `start` to `end` (UTC, end exclusive).

    A node of 2 GPUs is two records a stretch of time: one per SKU of its preset, e.g. sku "cpu-d3.vcpu" with
    units 8. Storage has units in GiB.
    """

    resource_id: str
    resource_kind: str
    resource_name: str
    parent_id: str
    sku: str
    units: int
    start: datetime
    end: datetime
    owner_id: str = ""
    """The resource that made this one, where the history says so."""

    @property
    def seconds(self) -> int:
        return int((self.end - self.start).total_seconds())

    @property
    def unit_seconds(self) -> int:
        return self.units * self.seconds


@dataclass(frozen=True)
class CountedUsage:
    """`count` pieces of `sku` used up in [start, end), on one day (UTC): tokens, where nothing is held."""

    resource_id: str
    resource_kind: str
    resource_name: str
    parent_id: str
    """The project that pays, wherever the resource is."""
    sku: str
    count: int
    start: datetime
    end: datetime
    unit: str
    """The unit of a price of the SKU, e.g. "million-tokens", and how many pieces that is."""
    unit_size: int
    unit_price: Decimal | None = None
    """The price that it was sold for; None: the one on the price list of the day."""


@dataclass(frozen=True)
class CreditCause:
    """Why a part of a resource is not charged."""

    part: str
    """The part, e.g. a worker of a cluster."""
    cause: str
    evidence: str
    """Id of the evidence; "" where none is needed."""
    reason: str


@dataclass(frozen=True)
class Credit:
    """Usage that is not charged: a part of what the meters report for the same time."""

    usage: UsageRecord
    cause: CreditCause
    is_open: bool = False
    """Whether it still lasts at the end of the window."""


class CreditSource(Protocol):
    """A source of credits, computed from what is stored: the same records always give the same credits."""

    async def __call__(
        self, histories: Sequence[Sequence[HistoryEntry]], start: datetime, end: datetime
    ) -> Sequence[Credit]:
        """Return the credits within [start, end) for the resources with these histories, which are those of
        all metered kinds in some projects. Credits of one resource and SKU never exceed its usage. Raises
        CreditsUnknown."""
        ...


class CreditsUnknown(Exception):
    """The records cannot be read, so no bill would be right; the message says what to do."""


class UsageSource(Protocol):
    """A source of usage beside the meters, with a history of its own."""

    def __call__(self, project_ids: Sequence[str], start: datetime, end: datetime) -> Iterable[CountedUsage]:
        """Usage of these projects within [start, end), of whole seconds: [a, b) and [b, c) are [a, c). It may
        block, so it is called, and the answer read, in a thread."""
        ...


@dataclass(frozen=True)
class CallerUsage:
    """Pieces of a SKU that one account used on a day (UTC), of those that a `CountedUsage` counts."""

    account_id: str
    resource_id: str
    parent_id: str
    sku: str
    day: date
    unit_price: Decimal | None
    count: int


class CallerSource(Protocol):
    """Says who used what a UsageSource counts, where that is known."""

    def by_caller(self, project_ids: Sequence[str], start: datetime, end: datetime) -> Iterable[CallerUsage]:
        """Usage of these projects within [start, end). It may block, like a UsageSource."""
        ...


def all_usage(*sources: UsageSource) -> UsageSource:
    """Return one source for several."""

    def usage(project_ids: Sequence[str], start: datetime, end: datetime) -> Iterable[CountedUsage]:
        for source in sources:
            yield from source(project_ids, start, end)

    return usage


class Meter(Protocol):
    kinds: tuple[str, ...]

    def __call__(
        self, history: Sequence[HistoryEntry], start: datetime, end: datetime
    ) -> Iterable[UsageRecord]:
        """Usage within [start, end) of the one resource whose whole history this is, oldest first."""
        ...


class Meters(tuple[Meter, ...]):
    """The meters of all services that are served."""


@dataclass(frozen=True)
class Interval:
    """A resource was as `entry` says from `start` to `end` (UTC, whole seconds, end exclusive)."""

    entry: HistoryEntry
    start: datetime
    end: datetime

    def record(self, *, sku: str, units: int, owner_id: str = "") -> UsageRecord:
        return UsageRecord(
            resource_id=self.entry.resource_id,
            resource_kind=self.entry.kind,
            resource_name=self.entry.name,
            parent_id=self.entry.parent_id,
            sku=sku,
            units=units,
            start=self.start,
            end=self.end,
            owner_id=owner_id,
        )


def intervals(history: Sequence[HistoryEntry], start: datetime, end: datetime) -> Sequence[Interval]:
    """The stretches of one resource's history within [start, end): what it was, from when to when.

    Every moment is cut to its whole second, so stretches meet exactly and windows that meet add up: the usage
    of [a, b) and of [b, c) is the usage of [a, c). A stretch within one second is dropped, as is everything
    after the deletion. A clock that was set back makes a stretch empty, never negative.
    """
    first, last = _whole_second(start), _whole_second(end)
    moments: list[datetime] = []
    for entry in history:
        at = _whole_second(entry.at)
        moments.append(max(at, moments[-1]) if moments else at)
    found: list[Interval] = []
    for entry, (begin, finish) in zip(history, pairwise([*moments, last]), strict=True):
        if entry.is_deleted:
            break
        begin, finish = max(begin, first), min(finish, last)
        if begin < finish:
            found.append(Interval(entry, begin, finish))
    return found


def _whole_second(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(microsecond=0)
