# pyright: strict
"""Room in buckets with a quota, reserved for bodies that are being received.

What is reserved and what is committed together never exceed the quota, so bodies that come side by side are
refused when they begin. The transaction checks again.
"""

from collections.abc import Callable

from neocloud.object_store.metadata.transaction import quota_exceeded

STEP_BYTES = 64 * 1024**2
"""Reserved at a time for a body of unknown length."""


class Room:
    """Reservations of all buckets. Used in the thread of the event loop alone."""

    def __init__(self, used: Callable[[int], int]) -> None:
        """`used` returns the bytes that a bucket holds."""
        self._used = used
        self._reserved: dict[int, int] = {}

    def reserve(self, bucket: int, limit: int, length: int | None, freed: int) -> "Reservation":
        """Reserve for a body that replaces `freed` bytes. A limit of 0 is none. Raises QuotaExceeded."""
        reservation = Reservation(self, bucket, limit)
        if limit:
            left = limit - self._used(bucket) - self._reserved.get(bucket, 0) + freed
            wanted = min(STEP_BYTES, left) if length is None else length
            if wanted > left or (length is None and left <= 0):
                raise quota_exceeded(limit)
            reservation.add(max(0, wanted - freed))
            reservation.covered = wanted
        return reservation

    def left(self, bucket: int, limit: int) -> int:
        return limit - self._used(bucket) - self._reserved.get(bucket, 0)

    def change(self, bucket: int, size: int) -> None:
        total = self._reserved.get(bucket, 0) + size
        if total:
            self._reserved[bucket] = total
        else:
            self._reserved.pop(bucket, None)


class Reservation:
    """Room for one body; `release` it after the commit."""

    def __init__(self, room: Room, bucket: int, limit: int) -> None:
        self._room = room
        self._bucket = bucket
        self._limit = limit
        self._size = 0
        self.covered = 0
        """The length that the body may have."""

    def add(self, size: int) -> None:
        self._room.change(self._bucket, size)
        self._size += size

    def cover(self, length: int) -> None:
        """Extend it for a body that has become longer. Raises QuotaExceeded."""
        if not self._limit or length <= self.covered:
            return
        more = min(max(STEP_BYTES, length - self.covered), self._room.left(self._bucket, self._limit))
        if self.covered + more < length:
            raise quota_exceeded(self._limit)
        self.add(more)
        self.covered += more

    def release(self) -> None:
        self._room.change(self._bucket, -self._size)
        self._size = 0
