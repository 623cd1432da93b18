"""Weights that have one adapter in them, layer by layer: which ones are kept. Knows nothing of vLLM.

Tokens of one adapter then cost what tokens of the base cost. Each adapter takes the memory of the adapted
weights again, so the product says how much there is. Merging takes a part of the time only, so that the
answers under way continue meanwhile.
"""

import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
Key = tuple[int, int]
"""A layer, and the place of an adapter in its stacks."""

TIME_BETWEEN = 3.0
"""After a layer is merged, the next is not for so many times its duration."""
IDLE_SECONDS = 60.0
"""An adapter that was not used for so long makes room for another."""


class MergedWeights(Generic[T]):
    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._kept: dict[Key, tuple[T, int]] = {}
        self._used_at: dict[int, float] = {}
        self._places: tuple[int, ...] = ()
        self._next = 0.0
        self.bytes = 0

    def use(self, places: Iterable[int]) -> None:
        """Note that a batch with other adapters begins."""
        now = self._clock()
        before, self._places = self._places, tuple(places)
        self._used_at.update(dict.fromkeys((*before, *self._places), now))

    def get(self, key: Key, size: int, make: Callable[[], T | None]) -> T | None:
        """Return the weights of this size with the adapter in them; None where they are not merged yet."""
        if found := self._kept.get(key):
            return found[0]
        now = self._clock()
        if now < self._next or not self._has_room(key[1], 2 * size, now):
            return None
        made = make()
        ended = self._clock()
        self._next = ended + TIME_BETWEEN * (ended - now)
        if made is not None:
            self._kept[key] = made, size
            self.bytes += size
        return made

    def forget(self, key: Key) -> None:
        if found := self._kept.pop(key, None):
            self.bytes -= found[1]

    def _has_room(self, place: int, size: int, now: float) -> bool:
        """Twice the size: while a layer is merged, its weights are there in two forms."""
        if size > self._most_bytes:
            return False
        for other in sorted({place for _, place in self._kept}, key=lambda one: self._used_at.get(one, 0.0)):
            if self.bytes + size <= self._most_bytes:
                return True
            if other not in (place, *self._places) and now - self._used_at.get(other, 0.0) > IDLE_SECONDS:
                for key in [key for key in self._kept if key[1] == other]:
                    self.forget(key)
        return self.bytes + size <= self._most_bytes
