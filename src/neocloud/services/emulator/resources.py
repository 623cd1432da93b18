"""Message classes, and the interface through which faults reach resources."""

from typing import Protocol

FAULT_ID_PREFIX = "fault"
PACKAGE = "neocloud.emulator."
"""Calls of it meet no faults: else nobody could clear one that is too broad."""
PERMISSION = "emulator.faults.manage"


class Incidents(Protocol):
    """What can be made to happen to a resource. Each says what it did; ApiError when it cannot."""

    async def crash(self, resource_id: str, pod: str) -> str: ...

    async def preempt(self, resource_id: str) -> str: ...

    async def plan_maintenance(self, resource_id: str, delay_seconds: float) -> str: ...
