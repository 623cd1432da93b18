# pyright: strict
"""Which probes there are, how often each runs, and how long it may take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.found import Found
from neocloud.fleet.agent.probes import (
    capacity,
    clock,
    ethernet,
    gpus,
    infiniband,
    memory_errors,
    mounts,
    nvme,
    pcie,
    tasks,
    thermal,
)
from neocloud.fleet.agent.tree import Tree

KERNEL = "kernel_log"
"""The probe that needs a cursor."""
ROOM = "room:"
"""Beginning of the names of probes that ask one mount for its room."""
DEADLINE_S = 5.0


@dataclass(frozen=True)
class Probe:
    name: str
    run: Callable[[Tree, Expected], Found]
    every: int
    """In intervals of the agent."""
    deadline_s: float = DEADLINE_S


PROBES: Sequence[Probe] = (
    Probe("infiniband", infiniband.probe, 1),
    Probe("gpus", gpus.probe, 3, 10.0),
    Probe("mounts", mounts.probe, 3),
    Probe("tasks", tasks.probe, 3),
    Probe("capacity", capacity.probe, 3),
    Probe("nvme", nvme.probe, 3),
    Probe("ethernet", ethernet.probe, 3),
    Probe("thermal", thermal.probe, 3),
    Probe("memory_errors", memory_errors.probe, 3),
    Probe("pcie", pcie.probe, 6),
    Probe("clock", clock.probe, 6),
)
RETRY_INTERVALS = 6
"""After a probe without an answer: what hangs is not asked every few seconds."""
