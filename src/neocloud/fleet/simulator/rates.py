"""Published failure rates, as data with their sources; what is assumed is marked so.

Every count is of interruptions of one job: Llama 3 405B, 16,384 H100 GPUs, 54 days ("The Llama 3 Herd of
Models", table 5). The counts sum to 419; the printed 30.1% for faulty GPUs does not match its own count.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from neocloud.fleet.nodes.events import CheckScope
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy import CodeKind

LLAMA_GPUS = 16_384
LLAMA_DAYS = 54.0
LLAMA_PLANNED = 47
LLAMA_GPU_HOURS = LLAMA_GPUS * LLAMA_DAYS * 24

SOURCES: tuple[tuple[str, str, str], ...] = (
    ("interruptions by cause", "published", "Llama 3 405B, 16,384 H100, 54 days: 419 unplanned, 47 planned"),
    ("GPU-hours of that run", "derived", "16,384 x 54 x 24 = 21.2 million; one interruption per 50.7 k"),
    ("cure of each cause", "assumed", "share of the faults that a reset, reboot or new part cures"),
    ("false positives of an outlier detector", "derived", "Lablup B200: 0.84 a day on 63 nodes"),
    ("false positives of trusted checks", "assumed", "--false-positives, for each node and day"),
    ("recall of checks", "assumed", "--recall; what no check names is searched for"),
    ("lemons", "assumed", "5% of nodes with 50% of faults agrees with Lablup's 3 of 63; off by default"),
    ("faults of lemons", "assumed", "a step cures them for that time; only new parts end them"),
    ("burn-in of 24 h", "published", "CoreWeave, after a part was replaced"),
    ("time out for a part of 24 h or 7 days", "assumed", "--repair-days"),
    ("steps, verification, restart", "assumed", "options and the defaults of Scenario"),
    ("faults of the policy for causes", "assumed", "with --compare alone; the other causes are rebooted"),
    ("faults in step with GPU-hours", "assumed", "a Poisson process of constant rate; no infant mortality"),
)


@dataclass(frozen=True)
class Cause:
    """A cause of interruptions. Without `check` it is of the job alone, and no node is to blame."""

    name: str
    count: int
    """Interruptions in the Llama 3 run."""
    check: str = ""
    cured_by: Mapping[Action, float] | None = None
    """[assumed] Share of the faults by the lowest rung that cures them."""
    scope: CheckScope = CheckScope.NODE
    in_policy: tuple[CodeKind, str] | None = None
    """[assumed] The fault of the policy that says what is done about it, where a policy is compared."""

    @property
    def part_share(self) -> float:
        """Share of the faults that only a new part cures."""
        return (self.cured_by or {}).get(Action.RMA, 0.0)


_GPU = {Action.RESET_GPU: 0.2, Action.REBOOT: 0.2, Action.RMA: 0.6}
_PART = {Action.RMA: 1.0}
_MEMORY = {Action.RESET_GPU: 0.6, Action.RMA: 0.4}

CAUSES: tuple[Cause, ...] = (
    Cause("faulty GPU", 148, "gpu-lost", _GPU, in_policy=(CodeKind.COUNTER, "gpu_lost")),
    Cause(
        "GPU HBM3 memory", 72, "ecc-uncorrectable", _MEMORY, in_policy=(CodeKind.COUNTER, "ecc_uncorrected")
    ),
    Cause("software bug", 54),
    Cause(
        *("network switch or cable", 35, "link-down", {Action.REBOOT: 0.5, Action.RMA: 0.5}, CheckScope.LINK),
        in_policy=(CodeKind.COUNTER, "ib_port_down_s"),
    ),
    Cause("unplanned host maintenance", 32, "host-maintenance", {Action.REBOOT: 1.0}),
    Cause(
        "GPU SRAM memory", 19, "ecc-uncorrectable", _MEMORY, in_policy=(CodeKind.COUNTER, "sram_uncorrected")
    ),
    Cause(
        *("GPU system processor", 17, "gsp-timeout", {Action.REBOOT: 0.8, Action.RMA: 0.2}),
        in_policy=(CodeKind.XID, "119"),
    ),
    Cause(
        *("NIC", 7, "nic-lost", {Action.REBOOT: 0.5, Action.RMA: 0.5}),
        in_policy=(CodeKind.COUNTER, "ib_port_missing"),
    ),
    Cause("NCCL watchdog timeouts", 7),
    Cause("silent data corruption", 6, "sdc", _PART),
    Cause("GPU thermal interface and sensor", 6, "thermal", _PART),
    Cause("SSD", 3, "disk", _PART, in_policy=(CodeKind.COUNTER, "nvme_missing")),
    Cause("power supply", 3, "power-supply", _PART),
    Cause("server chassis", 2, "chassis", _PART),
    Cause("IO expansion board", 2, "io-board", _PART),
    Cause("dependency", 2),
    Cause("CPU", 2, "machine-check", _PART, in_policy=(CodeKind.KERNEL, "machine_check_uncorrected")),
    Cause(
        "system memory", 2, "memory-uncorrectable", _PART, in_policy=(CodeKind.KERNEL, "memory_uncorrected")
    ),
)
SEARCH = "hang-search"
"""Finds the node of a fault that no other check names."""
RACK_POWER = "rack-power"
TRUSTED = frozenset(cause.check for cause in CAUSES if cause.check) | {SEARCH, RACK_POWER}
RACK_CAUSE = "rack power"
OUTLIER = "statistical-outlier"
"""A detector of slow nodes without a record; the controller keeps it in shadow."""
OUTLIER_PER_NODE_DAY = 0.84 / 63
