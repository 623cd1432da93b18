"""Runs one inventory: each run when it is due, until cancelled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from neocloud.core.clock import Clock
from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.messages.nebius.storage.v1 import InventorySpec
from neocloud.messages.neocloud.storage.v1 import GatewayInventory
from neocloud.object_gateway.access import ControlPlane
from neocloud.object_gateway.work.inventories.records import InventoryRow, Records, last_start
from neocloud.object_gateway.work.inventories.run import InventoryFailed, InventoryRun
from neocloud.object_store.errors import ObjectStoreError, QuotaExceeded, StoreFull, StoreUnavailable
from neocloud.object_store.metadata.transaction import to_time
from neocloud.object_store.store import ObjectStore

_WEEKLY = InventorySpec.Schedule.Value("WEEKLY")
_SUNDAY = 6


def next_run(last_start: datetime | None, schedule: int) -> datetime | None:
    """Return when the next run is due; None: at once."""
    if last_start is None:
        return None
    midnight = last_start.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    if schedule == _WEEKLY:
        midnight += timedelta(days=(_SUNDAY - midnight.weekday()) % 7)
    return midnight


RETRY_AFTER = timedelta(hours=1)
"""After a run that failed, unless the inventory is changed earlier."""
AWAY_SECONDS = 2.0
"""Between attempts while the control plane or the store does not answer."""
LONGEST_SLEEP_SECONDS = 600.0
"""The clock of the machine may be set meanwhile."""
logger = logging.getLogger(__name__)


class Slots:
    """Slots for runs: one for each tenant, and a limit for all."""

    MOST = 4

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(self.MOST)
        self._tenants: dict[str, asyncio.Semaphore] = {}

    async def run(self, tenant_id: str, work: Callable[[], Awaitable[bool]]) -> bool:
        own = self._tenants.setdefault(tenant_id, asyncio.Semaphore(1))
        async with own, self._all:
            return await work()


class InventoryRunner:
    def __init__(
        self,
        desired: GatewayInventory,
        store: ObjectStore,
        control_plane: ControlPlane,
        records: Records,
        clock: Clock,
        slots: Slots,
        has_changed: Callable[[], Awaitable[None]],
    ) -> None:
        """`has_changed` is called after each run."""
        self._desired, self._id = desired, desired.id
        self._records, self._clock = records, clock
        self._slots, self._has_changed = slots, has_changed
        self._run = InventoryRun(desired, store, control_plane, records, clock)

    async def run(self) -> None:
        """Run until the inventory is gone, or until cancelled."""
        while (row := self._records.find(self._id)) is not None:
            pause = self._pause_seconds(row)
            if pause > 0:
                await self._clock.sleep(min(pause, LONGEST_SLEEP_SECONDS))
                continue
            if not await self._slots.run(self._desired.tenant_id, self._try):
                await self._clock.sleep(AWAY_SECONDS)
            await self._has_changed()

    async def forget(self) -> None:
        """Give up the run in progress, if there is one."""
        row = self._records.find(self._id)
        if row is not None and row.run:
            await self._run.give_up()

    def _pause_seconds(self, row: InventoryRow) -> float:
        if row.run:
            return 0.0
        at = to_time(row.retry_ms)
        due = next_run(last_start(row), self._desired.spec.schedule)
        return ((max(at, due) if due is not None else at) - self._clock.now()).total_seconds()

    async def _try(self) -> bool:
        """Return False where the same run has to be tried again."""
        try:
            await self._attempt()
        except (ControlPlaneUnavailable, StoreFull, StoreUnavailable) as error:
            logger.warning("The inventory %s waits: %s", self._id, error)
            return False
        return True

    async def _attempt(self) -> None:
        """Write one report, or note why there is none."""
        try:
            await self._run.write()
        except (StoreFull, StoreUnavailable, ControlPlaneUnavailable):
            raise
        except InventoryFailed as error:
            await self._fail(error.code, error)
        except QuotaExceeded as error:
            await self._fail("QUOTA_EXCEEDED", error)
        except ObjectStoreError as error:
            await self._fail("INVALID_INTENT", error)
        except Exception as error:  # the border of the loop: one inventory must not end the others
            logger.exception("The inventory %s failed", self._id)
            await self._fail("INVALID_INTENT", error)

    async def _fail(self, code: str, error: Exception) -> None:
        logger.info("A run of the inventory %s failed: %s: %s", self._id, code, error)
        await self._run.give_up()
        await self._records.fail(self._id, code, RETRY_AFTER)
