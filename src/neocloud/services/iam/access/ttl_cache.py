"""A bounded cache whose entries expire."""

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

from neocloud.core.clock import Clock

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class TtlCache(Generic[Key, Value]):
    """A cache by key; when it is full, the entry written first is evicted."""

    def __init__(self, clock: Clock, *, max_age_seconds: float = inf, max_size: int = 10_000) -> None:
        self._clock = clock
        self._max_age = max_age_seconds
        self._max_size = max_size
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None or self._clock.monotonic() - entry[0] >= self._max_age:
            return None
        return entry[1]

    def put(self, key: Key, value: Value) -> None:
        self._entries[key] = (self._clock.monotonic(), value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_size:
            self._entries.popitem(last=False)
