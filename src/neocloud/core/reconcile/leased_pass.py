"""A pass while its lease is held: renewed as long as it runs, its progress shown, its finding written.

Whatever happens, either the finding is written, or the lease is given back, or it runs out by itself.
"""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

from neocloud.core import operations
from neocloud.core.reconcile.context import RunContext, WorkerContext
from neocloud.core.reconcile.one_pass import Pass, Verdict
from neocloud.core.reconcile.reconciler import Reconciler
from neocloud.core.reconcile.settling import Finding, give_back, settle
from neocloud.core.store.protocol import Lease, LeaseLost, Resource, StoreError, Transaction

log = logging.getLogger(__name__)

_BEAT_SECONDS = 1.0


class LeasedPass:
    """One pass over one resource, from lease to settled."""

    def __init__(
        self,
        surroundings: WorkerContext,
        reconciler: Reconciler,
        resource: Resource,
        lease: Lease,
        lease_seconds: float,
    ) -> None:
        self._around = surroundings
        self._resource = resource
        self._lease = lease
        self._lease_seconds = lease_seconds
        self._renewed_at = surroundings.clock.monotonic()
        self._pass = Pass(reconciler, RunContext(surroundings, resource, lease), lease.attempts)

    async def run(self) -> None:
        try:
            verdict = await self._while_leased()
            await self._settle(verdict)
        except LeaseLost as lost:
            log.info("%s: the finding is dropped: %s", self._resource.id, lost)
        except StoreError as error:
            log.error("%s: the finding cannot be written: %s", self._resource.id, error)
        except asyncio.CancelledError:
            await self._give_back()
            raise

    async def _while_leased(self) -> Verdict:
        working = asyncio.ensure_future(self._pass.run())
        beating = asyncio.ensure_future(self._beat())
        try:
            await asyncio.wait({working, beating}, return_when=asyncio.FIRST_COMPLETED)
            if beating.done() and not working.done():
                beating.result()  # raises LeaseLost
            return working.result()
        finally:
            await _end(working)
            await _end(beating)

    async def _beat(self) -> None:
        """Renew the lease and show progress while the pass runs. Ends only by LeaseLost."""
        shown = None
        while True:
            await self._around.clock.sleep(min(_BEAT_SECONDS, self._lease_seconds / 3))
            must_renew = self._around.clock.monotonic() - self._renewed_at >= self._lease_seconds / 3
            if not must_renew and self._pass.progress == shown:
                continue
            shown = self._pass.progress
            await self._renew()

    async def _renew(self) -> None:
        steps = self._pass.progress

        def renew(tx: Transaction) -> Lease:
            now = self._around.clock.now()
            operations.report_progress(tx, self._resource.id, steps, "", now)
            return tx.renew(self._lease, now + timedelta(seconds=self._lease_seconds))

        try:
            self._lease = await self._around.store.write(renew)
            self._renewed_at = self._around.clock.monotonic()
        except LeaseLost:
            raise
        except StoreError as error:
            log.error("%s: the lease cannot be renewed: %s", self._resource.id, error)

    async def _settle(self, verdict: Verdict) -> None:
        finding = Finding(self._resource, self._lease, verdict, self._pass.progress)
        around = self._around
        await around.store.write(lambda tx: settle(tx, around.kinds, finding, around.clock.now()))

    async def _give_back(self) -> None:
        with suppress(StoreError):
            await self._around.store.write(lambda tx: give_back(tx, self._lease, self._around.clock.now()))


async def _end(task: asyncio.Future) -> None:
    """Cancel it and wait until it has let go of everything."""
    task.cancel()
    await asyncio.wait({task})
