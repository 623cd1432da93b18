"""The one implementation of `Transaction`, for both databases."""

from neocloud.core.store.audit_rows import AuditRows
from neocloud.core.store.counter_rows import CounterRows
from neocloud.core.store.history_rows import HistoryRows
from neocloud.core.store.mark_rows import MarkRows
from neocloud.core.store.queue_rows import QueueRows
from neocloud.core.store.record_rows import RecordRows
from neocloud.core.store.reservation_rows import ReservationRows


class SqlTransaction(QueueRows, RecordRows, HistoryRows, AuditRows, ReservationRows, CounterRows, MarkRows):
    """Everything the protocol asks for, over one SQLAlchemy connection. Valid until its work returns."""
