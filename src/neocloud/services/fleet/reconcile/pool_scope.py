"""The state of a run over a pool of workers or hosts, and the common steps of both: read the log of the pool,
append to it, and say in the status how the run ended.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from neocloud.core.reconcile.reconciler import DAEMON_POLL_SECONDS, Context, ReconcileResult, RetryLater
from neocloud.core.store.protocol import Transaction
from neocloud.fleet.nodes.events import Event, Phase
from neocloud.messages.neocloud.fleet.v1 import HostPool, NodePool
from neocloud.services.fleet.logs.decision_log import log_breakers, log_decisions
from neocloud.services.fleet.logs.node_logs import BrokenLog, NodeLogs, PoolLog, log_event
from neocloud.services.fleet.types import PoolState

PoolT = TypeVar("PoolT", NodePool, HostPool)


@dataclass
class PoolScope(Generic[PoolT]):
    context: Context
    pool: PoolT
    log: PoolLog | None = None
    wanted: int | None = None
    """How many nodes there should be; None: as was known before."""
    problem: str = ""
    held: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes for which something waits, and why."""
    reasons: dict[Event, str] = field(default_factory=dict[Event, str])
    """Why the controller has decided each of its events."""
    has_changed: bool = False
    """Whether this run appended an event, from which more may follow."""

    @property
    def cluster_id(self) -> str:
        """Return the id of the cluster whose nodes they are; "" of hosts."""
        return ""

    @property
    def known(self) -> PoolLog:
        assert self.log is not None, "the first step reads it"
        return self.log

    async def read(self, logs: NodeLogs, retry_seconds: float) -> None:
        try:
            self.log = await logs.read(self.pool.metadata.id, self.wanted)
        except BrokenLog as error:
            raise self.blind(str(error), retry_seconds) from error

    async def append(
        self, logs: NodeLogs, found: Sequence[Event], claim: Callable[[Transaction], None] | None = None
    ) -> None:
        """Append to the log, then take in what it has."""
        if found:
            trips = set(self.known.fleet.breakers.trips)
            await self.context.append_events(self.known.id, [log_event(each) for each in found], claim)
            log_decisions(self.cluster_id, found, self.reasons)
            self.log = await logs.read(self.known.id, self.wanted)
            log_breakers(self.known.id, trips, self.known.fleet.breakers.trips)
            self.has_changed = True

    def blind(self, problem: str, retry_seconds: float) -> RetryLater:
        self.problem = problem
        return RetryLater(problem, delay_seconds=retry_seconds)

    def end(self, result: ReconcileResult) -> PoolState:
        """Return the state for the status. The nodes of a cloud that was stopped stay so until they are
        seen again."""
        self.problem = self.problem or result.message
        if self.context.resource.deleted_at is not None:
            return PoolState.DELETING
        unseen = PoolState.STOPPED if self.context.resource.state == PoolState.STOPPED else PoolState.BLIND
        return unseen if self.problem else PoolState.ACTIVE

    def is_in(self, phases: Iterable[Phase]) -> bool:
        """Return whether a node is in one of these phases."""
        return self.log is not None and any(self.log.fleet.phases[each] for each in phases)

    def next_run(self, seconds: float) -> float:
        return DAEMON_POLL_SECONDS if self.has_changed else seconds
