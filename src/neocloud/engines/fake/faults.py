# pyright: strict
"""Faults that tests inject."""

import asyncio
from dataclasses import dataclass, field

from neocloud.engines.base import EngineError, EngineUnavailable


@dataclass
class Faults:
    """Settings of a test; by default nothing fails."""

    unavailable: bool = False
    """Every verb raises EngineUnavailable."""
    fail_applies: int = 0
    """So many calls of apply raise EngineError, half way through."""
    apply_seconds: float = 0.0
    """How long each pod takes to start, by the engine's clock."""
    start_gate: asyncio.Event | None = None
    """Pods are created, but stay Pending until this is set."""
    die_after_seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Pods, by name, whose first container fails so long after each start, by the engine's clock."""
    unknown_images: set[str] = field(default_factory=set[str])

    def check_available(self) -> None:
        if self.unavailable:
            raise EngineUnavailable("The engine does not answer; try again later.")

    def check_apply(self) -> None:
        if self.fail_applies > 0:
            self.fail_applies -= 1
            raise EngineError("The engine failed on purpose; apply again.")
