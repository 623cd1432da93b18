"""The probes, with how often each runs and how long it may take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import ProbeResult
from neocloud.fleet.agent.probes import gpu_use, gpus, links, storage, system

GPU_USE = "gpu_use"
KERNEL = "kernel_log"
"""The probe that needs a cursor."""
ROOM = "room:"
"""Beginning of the names of probes that ask one mount for its room."""
DEADLINE_S = 5.0
DEFAULT_INTERVAL_S = 10.0
"""Between two looks of the agent."""


@dataclass(frozen=True)
class Probe:
    name: str
    run: Callable[[Tree, Expected], ProbeResult]
    every: int
    """In intervals of the agent."""
    deadline_s: float = DEADLINE_S


PROBES: Sequence[Probe] = (
    Probe("infiniband", links.infiniband, 1),
    Probe("gpus", gpus.gpus, 3, 10.0),
    Probe("mounts", storage.mounts, 3),
    Probe("tasks", system.tasks, 3),
    Probe("capacity", system.capacity, 3),
    Probe("nvme", storage.nvme, 3),
    Probe("ethernet", links.ethernet, 3),
    Probe("thermal", system.thermal, 3),
    Probe("memory_errors", system.memory_errors, 3),
    Probe("pcie", links.pcie, 6),
    Probe("clock", system.clock, 6),
)
POD_PROBES: Sequence[Probe] = (
    Probe("gpus", gpus.gpus_of_pod, 3, 10.0),
    Probe(GPU_USE, gpu_use.gpu_use, 3, 10.0),
    Probe("mounts", storage.mounts, 3),
)
"""In a container: its own GPUs, with how much they are used, and mounts. Among the rest, `/proc` and `/sys`
have the host's data, with those of other tenants; and its size is measured from outside."""
RETRY_INTERVALS = 6
"""After a probe without an answer: what hangs is not asked every few seconds."""
