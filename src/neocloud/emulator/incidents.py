"""Incidents that happen to resources of an emulated cloud because somebody asked for them."""

from datetime import timedelta

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.store import Store
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine
from neocloud.services.compute.api.maintenance import plan_maintenance
from neocloud.services.compute.runtime_state import preempt


class EmulatorIncidents:
    """Implements `services.emulator.Incidents`."""

    def __init__(self, engine: FakeEngine, store: Store, clock: Clock) -> None:
        self._engine = engine
        self._store = store
        self._clock = clock

    async def crash(self, resource_id: str, pod: str) -> str:
        """A namespace is named after the resource whose pods it holds."""
        observed = await self._engine.observe(resource_id)
        names = [each.reference.name for each in observed.pods if pod in ("", each.reference.name)]
        if not names:
            what = f"pod {pod!r} of" if pod else "pod of"
            raise contract.bad_state(resource_id, f"There is no {what} {resource_id} that could crash.")
        for name in names:
            self._engine.kill(Reference("Pod", resource_id, name))
        return f"Crashed: {', '.join(names)}."

    async def preempt(self, resource_id: str) -> str:
        await preempt(self._store, resource_id, self._clock.now())
        return f"Preempted: {resource_id} is being stopped."

    async def plan_maintenance(self, resource_id: str, delay_seconds: float) -> str:
        now = self._clock.now()
        deadline = now + timedelta(seconds=delay_seconds)
        event_id = await plan_maintenance(
            self._store, resource_id, now=now, deadline=deadline, reason="Planned by an injected fault."
        )
        return f"Planned: maintenance event {event_id}, due by {deadline.isoformat()}."
