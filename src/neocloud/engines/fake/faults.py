"""Faults that tests inject."""

import asyncio
from dataclasses import dataclass, field

from neocloud.engines.base import EngineError, EngineUnavailable
from neocloud.engines.manifest import Pod


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
    stop_gate: asyncio.Event | None = None
    """Pods that are removed take until this is set: guests that ignore their power button."""
    die_after_seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Pods, by name, whose first container fails so long after each start, by the engine's clock."""
    taken_addresses: set[str] = field(default_factory=set[str])
    """No pod starts that publishes a port on one of these addresses of the host."""
    unknown_images: set[str] = field(default_factory=set[str])
    pull_gate: asyncio.Event | None = None
    """Pulls of images take until this is set."""
    pull_error: EngineError | None = None
    """The error that every pull of an image raises."""

    def check_available(self) -> None:
        if self.unavailable:
            raise EngineUnavailable("The engine does not answer; try again later.")

    def check_ports(self, pod: Pod) -> None:
        ports = (port for container in pod.containers for port in container.ports or ())
        for port in ports:
            if port.host_ip in self.taken_addresses:
                raise EngineError(f"{port.host_ip}:{port.host_port}: address already in use")

    def check_apply(self) -> None:
        if self.fail_applies > 0:
            self.fail_applies -= 1
            raise EngineError("The engine failed on purpose; apply again.")
