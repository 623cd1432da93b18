"""What is asked of deployments now, and told to the control plane: by it replicas are started and stopped."""

import asyncio
import logging
from dataclasses import dataclass

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.gateway.control_plane import ControlPlane, ControlPlaneAway

logger = logging.getLogger(__name__)

TRAFFIC = "neocloud.inference.v1.Traffic"
REPORT_SECONDS = 1.0
QUIET_REPORTS = 10
"""Without traffic one in so many is sent, an empty one: that nobody asks is not the same as no word."""


@dataclass(slots=True)
class _Count:
    in_flight: int = 0
    waiting: int = 0
    """Held until a replica is ready."""
    refused: int = 0
    """Answered 503 since the last report, as nothing ran: they wake the deployment as well."""
    telling: int = 0
    """Of those: in the report that is on its way."""
    is_news: bool = False


class Traffic:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[str, _Count] = {}
        self._urgent = asyncio.Event()
        self.batch_requests = 0
        """Of all that is in flight or waiting."""

    def _count(self, deployment_id: str) -> _Count:
        count = self._counts.get(deployment_id)
        if count is None:
            count = self._counts[deployment_id] = _Count()
        return count

    def started(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.in_flight += 1
        count.is_news = True

    def finished(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.in_flight -= 1
        count.is_news = True

    def waits(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.waiting += 1
        self._wake(count)

    def waits_no_more(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.waiting -= 1
        count.is_news = True

    def refused(self, deployment_id: str) -> None:
        count = self._count(deployment_id)
        count.refused += 1
        self._wake(count)

    def _wake(self, count: _Count) -> None:
        count.is_news = True
        if count.waiting + count.refused == 1:
            self._urgent.set()

    def in_flight(self) -> int:
        return sum(count.in_flight for count in self._counts.values())

    def live_requests(self) -> int:
        """Without those of batches."""
        all_of_them = sum(count.in_flight + count.waiting for count in self._counts.values())
        return max(all_of_them - self.batch_requests, 0)

    def report(self) -> list[object]:
        """What there is to tell; empty when nothing goes on and all was told."""
        now = self._clock.now()
        message = contract.message(TRAFFIC)
        items = []
        for deployment_id, count in list(self._counts.items()):
            is_busy = count.in_flight or count.waiting
            if not is_busy and not count.is_news:
                continue
            items.append(
                message(
                    deployment_id=deployment_id,
                    in_flight=count.in_flight,
                    waiting=count.waiting + count.refused,
                    last_request_at=contract.timestamp(now),
                )
            )
        return items

    def telling(self) -> None:
        """The report is on its way; what happens from now on is for the next."""
        for count in self._counts.values():
            count.telling, count.refused = count.refused, 0
            count.is_news = False

    def told(self) -> None:
        """It arrived."""
        for deployment_id, count in list(self._counts.items()):
            count.telling = 0
            if not count.in_flight and not count.waiting and not count.is_news:
                del self._counts[deployment_id]

    def not_told(self) -> None:
        for count in self._counts.values():
            count.refused += count.telling
            count.telling = 0
            count.is_news = True

    async def report_forever(self, control_plane: ControlPlane) -> None:
        """Each second while something happens; at once when someone waits for a replica."""
        silent = QUIET_REPORTS
        while True:
            self._urgent.clear()
            items = self.report()
            silent += 1
            if items or silent >= QUIET_REPORTS:
                silent = 0
                try:
                    self.telling()
                    await control_plane.report(items)
                    self.told()
                except ControlPlaneAway as error:
                    self.not_told()
                    logger.info("Traffic was not reported: %s", error)
            try:
                await asyncio.wait_for(self._urgent.wait(), REPORT_SECONDS)
            except TimeoutError:
                continue
