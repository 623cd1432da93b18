"""What every `Store` must do, as tests to inherit from.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self, clock): ...

`clock` is a fixture that gives the FakeClock which the store was opened with.
"""

from neocloud.testing.store_conformance.audit import AuditConformance
from neocloud.testing.store_conformance.counters import CounterConformance
from neocloud.testing.store_conformance.history import HistoryConformance
from neocloud.testing.store_conformance.marks import MarkConformance
from neocloud.testing.store_conformance.queue import QueueConformance
from neocloud.testing.store_conformance.records import RecordConformance
from neocloud.testing.store_conformance.reservations import ReservationConformance
from neocloud.testing.store_conformance.resources import ResourceConformance
from neocloud.testing.store_conformance.secrets import SecretConformance
from neocloud.testing.store_conformance.transactions import TransactionConformance


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
    TransactionConformance,
):
    """All of it."""


__all__ = ["StoreConformance"]
