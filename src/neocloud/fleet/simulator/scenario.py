"""The simulated scenario: one job on all GPUs of a fleet, with spares, for a number of days."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from neocloud.fleet.nodes.events import CheckScope
from neocloud.fleet.policy.actions import Action, Suite
from neocloud.fleet.policy.limits import DAY, HOUR, MINUTE, Limits
from neocloud.fleet.policy.policy import Policy
from neocloud.fleet.simulator.rates import (
    CAUSES,
    LLAMA_DAYS,
    LLAMA_GPU_HOURS,
    LLAMA_PLANNED,
    OUTLIER_PER_NODE_DAY,
    TRUSTED,
    Cause,
)

SPARES_ENOUGH = 0.99


@dataclass(frozen=True)
class Scenario:
    gpus: int = 16_384
    """GPUs of the job; the spares come on top."""
    days: float = LLAMA_DAYS
    seed: int = 1
    spares: int | None = None
    """Nodes beside those of the job; by the Poisson rule when None."""
    gpus_per_node: int = 8
    nodes_per_rack: int = 4
    nodes_per_leaf: int = 16

    rate: float = 1.0
    """Multiple of the Llama 3 rate."""
    lemon_nodes: float = 0.0
    lemon_faults: float = 0.5
    """Share of the nodes that are lemons, and of the faults of nodes that they have at the start."""
    leaf_share: float = 0.2
    """Share of the switch and cable faults that are of a switch: links of all its nodes fail together."""
    rack_faults_per_year: float = 0.0
    """Racks that lose power, in the whole fleet."""

    recall: float = 0.9
    verify_recall: float = 0.98
    false_positives: float = 0.0001
    """Rate of the trusted checks together, for each node and day."""
    outlier_false_positives: float = OUTLIER_PER_NODE_DAY
    trust_outlier: bool = False

    detect: float = 10.0
    search: float = 30 * MINUTE
    """Time until the node is found when no check names it."""
    drain: float = 5.0
    attach: float = 60.0
    """Network and storage of a spare."""
    restart: float = 120.0
    """Start of the job and load of the checkpoint."""
    leaf_repair: float = 20 * MINUTE
    rack_repair: float = 2 * HOUR
    save: float = 60.0
    """A checkpoint, during which the job does not compute."""
    checkpoint_interval: float | None = None
    """Daly's for the expected interruptions when None."""
    maintenance_every: float = LLAMA_DAYS * DAY / LLAMA_PLANNED
    maintenance: float = 30 * MINUTE
    """Planned interruptions; idle nodes renew their certificates in them. 0 for none."""

    steps: Mapping[Action, float] = field(
        default_factory=lambda: {
            Action.RESET_GPU: 2 * MINUTE,
            Action.REBOOT: 8 * MINUTE,
            Action.POWER_CYCLE: 12 * MINUTE,
            Action.REIMAGE: 30 * MINUTE,
        }
    )
    step_failure: float = 0.01
    verify: Mapping[Suite, float] = field(
        default_factory=lambda: {Suite.QUICK: 10 * MINUTE, Suite.FULL: 20 * MINUTE}
    )
    relapse: float = 6 * HOUR
    """Mean time until a node that was returned with its fault fails again."""
    ignored: float = 10 * MINUTE
    """[assumed] Mean time until a fault that the policy ignores stops the job again."""
    triage: float = 4 * HOUR
    repair: float = 7 * DAY
    """Time that a node is out for a new part, before its burn-in."""
    limits: Limits = field(default_factory=lambda: Limits(trusted=TRUSTED))
    policy: Policy | None = None
    """The response to a named fault; without one, GPUs are reset and everything else is rebooted."""
    gpu_type: str = "h100"
    """For rows of the policy that are of one generation."""

    @property
    def job_nodes(self) -> int:
        return self.gpus // self.gpus_per_node

    @property
    def spare_nodes(self) -> int:
        return self.spares_by_rule() if self.spares is None else self.spares

    def spares_by_rule(self) -> int:
        """Return the smallest number of spares that is enough with 99% probability, when the nodes that are
        out for a new part are Poisson distributed."""
        parts = sum(cause.count * cause.part_share * self._node_share(cause) for cause in CAUSES)
        seconds_out = self.triage + self.repair + self.limits.burn_in
        mean = self.rate * self.gpus * parts / LLAMA_GPU_HOURS * seconds_out / HOUR
        count, term = 0, math.exp(-mean)
        enough = term
        while enough < SPARES_ENOUGH and count < 10 * mean + 10:
            count += 1
            term *= mean / count
            enough += term
        return count

    def _node_share(self, cause: Cause) -> float:
        return 1 - self.leaf_share if cause.scope is CheckScope.LINK else 1.0
