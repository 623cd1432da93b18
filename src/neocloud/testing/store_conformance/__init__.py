# pyright: standard
"""Tests of the behaviour of every `Store`, to inherit from.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self, clock): ...

`clock` is a fixture that gives the FakeClock which the store was opened with.
"""

from neocloud.testing.store_conformance.counters import (
    CounterConformance,
    MarkConformance,
    ReservationConformance,
)
from neocloud.testing.store_conformance.event_logs import EventLogConformance
from neocloud.testing.store_conformance.history import HistoryConformance
from neocloud.testing.store_conformance.queue import QueueConformance
from neocloud.testing.store_conformance.records import AuditConformance, RecordConformance
from neocloud.testing.store_conformance.resources import (
    ResourceConformance,
    SecretConformance,
    TransactionConformance,
)
from neocloud.testing.store_conformance.searches import SearchConformance


class StoreConformance(
    ResourceConformance,
    QueueConformance,
    RecordConformance,
    HistoryConformance,
    AuditConformance,
    ReservationConformance,
    CounterConformance,
    SecretConformance,
    MarkConformance,
    EventLogConformance,
    SearchConformance,
    TransactionConformance,
):
    """All tests of a store."""


__all__ = ["StoreConformance"]
