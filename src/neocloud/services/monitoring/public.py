"""The address of the metrics store, for the composition of a cloud; and the interface for other services."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class StoreAddress:
    url: str
    """"http://127.0.0.1:8428"."""
    user: str
    password: str = field(repr=False)


class MetricsStore(Protocol):
    def address(self) -> StoreAddress | None:
        """Return where the store answers; None where there is none."""
        ...


class MetricsUnknown(Exception):
    """The store did not answer, so nothing is known; the message says why."""


@dataclass(frozen=True)
class Sample:
    labels: Mapping[str, str]
    value: float


class MetricsReader(Protocol):
    async def query(self, project_id: str, expression: str, at: float) -> Sequence[Sample]:
        """Return what an expression of PromQL finds at a time, in the series of one project alone. Raises
        MetricsUnknown."""
        ...
