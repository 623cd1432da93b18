"""The interface of billing for other services."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol


class FocusBills(Protocol):
    async def __call__(self, parent_id: str, start: datetime, end: datetime, /) -> str:
        """Return the bill of a project or tenant in CSV of FOCUS, with its header. Raises ApiError where the
        usage of that time is not kept."""
        ...


@dataclass(frozen=True)
class Charge:
    """The usage of one SKU by one resource, for which one project pays."""

    resource_id: str
    """The resource, or the one that owns it where the history says so."""
    resource_name: str
    """For tokens: the model's name as clients called it."""
    parent_id: str
    """The project that pays."""
    sku: str
    quantity: Decimal
    unit: str
    cost: Decimal | None
    """Before credits; None where a part of it has no price."""
    is_counted: bool
    """Whether pieces were counted, such as tokens; False: a resource was held for a time."""


@dataclass(frozen=True)
class Charges:
    items: Sequence[Charge]
    currency: str
    start: datetime
    """The beginning of the usage that is kept, where that is later than what was asked for."""


class ResourceCharges(Protocol):
    async def __call__(
        self,
        project_ids: Collection[str],
        *,
        kinds: Collection[str],
        resource_ids: Collection[str],
        models: Collection[str],
        start: datetime,
    ) -> Charges:
        """Return what these projects pay since a time: for these resources of these kinds and those that they
        own, and for tokens of models with these names."""
        ...
