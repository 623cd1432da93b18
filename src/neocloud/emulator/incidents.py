"""Incidents that happen to resources of an emulated cloud because somebody asked for them."""

from neocloud.core import contract
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine


class EmulatorIncidents:
    """Implements `services.emulator.Incidents`."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

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
        raise contract.unimplemented("Preemption")

    async def plan_maintenance(self, resource_id: str, delay_seconds: float) -> str:
        raise contract.unimplemented("Maintenance")
