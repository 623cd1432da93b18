"""Where the store of metrics is, for the composition of a cloud."""

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
