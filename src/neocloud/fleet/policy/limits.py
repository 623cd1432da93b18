"""Limits of the node lifecycle: budgets, breakers and terms. Defaults name where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from neocloud.fleet.policy.actions import Action, Suite

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@dataclass(frozen=True)
class Limits:
    per_rung: tuple[tuple[int, float], ...] = ((2, DAY), (5, 7 * DAY))
    """How often a node may go through one rung: (times, within seconds)."""
    step_deadline: Mapping[Action, float] = field(
        default_factory=lambda: {
            Action.RESET_GPU: 15 * MINUTE,
            Action.REBOOT: 30 * MINUTE,
            Action.POWER_CYCLE: 45 * MINUTE,
            Action.REIMAGE: 2 * HOUR,
        }
    )
    verify_deadline: Mapping[Suite, float] = field(
        default_factory=lambda: {Suite.QUICK: 30 * MINUTE, Suite.FULL: 2 * HOUR}
    )
    certificate_term: float = 7 * DAY
    """ClusterMAX: active checks weekly; a spare passed them at most 7 days ago."""
    renew_before: float = 2 * DAY
    """An idle node is verified again when its certificate ends within this time."""
    renew_share: float = 0.2
    """Share of the nodes that may be in verification when another idle node is to renew its certificate."""
    burn_in: float = DAY
    """CoreWeave: 24 h after a part was replaced."""
    unknown_grace: float = 5 * MINUTE
    """How long a check may give no answer before the node is drained."""

    window: float = 10 * MINUTE
    cluster_drains: float = 0.05
    """Share of the nodes that may be drained within the window."""
    cluster_out: float = 0.15
    """Share of the nodes that may be out because of us at the same time."""
    smallest_cluster_limit: int = 2
    """Small clusters may lose this many nodes whatever the shares say."""
    dead_checks: frozenset[str] = frozenset()
    """Checks whose fatal failure says that a node can run nothing."""
    dead_replacements: int = 0
    """Nodes that can run nothing and may be drained within the window although a breaker of their rack, leaf
    switch or cluster is open, each when a spare is ready for it: such a drain takes nothing away. Their
    repairs wait for the breaker."""
    rack_drains: int = 4
    leaf_drains: int = 4
    """Drains within the window that one rack or leaf switch may cause."""
    rack_tolerates: int | None = None
    """For racks that are one NVLink domain: how many nodes may be out before the whole rack is drained.
    CoreWeave plans for 2 of 18."""
    link_faults_blame_leaf: int = 3
    """Nodes with link faults on one leaf switch within the window, from which on the switch is to blame."""
    storage_faults_blame_storage: int = 5
    correlation_delay: float = 5.0
    """How long a link or storage fault waits for others that would clear its node of blame."""
    tenant_drains: int = 1
    """Drains of one job's nodes at the same time, of those that still run it."""
    check_factor: float = 5.0
    check_window: float = HOUR
    check_minimum: int = 5
    """A check is tripped by this many nodes in its window, if that is `check_factor` times its usual rate."""
    baseline: float = 7 * DAY
    lemon_failures: int = 3
    """Failures from which on a node may count as a lemon."""
    lemon_factor: float = 3.0
    lemon_probability: float = 0.95
    """[assumed] A lemon fails more often than `lemon_factor` times the fleet's rate with this probability;
    above 1, none is."""
    action_failures: int = 3
    """Failures of one action in a row."""
    cool_down: float = 30 * MINUTE
    """How long a tripped breaker stops everything before it lets canaries through."""
    canaries: int = 1
    judged_minimum: int = 20
    """Judged verdicts from which on the precision of a check decides whether it may drain nodes."""
    precision_minimum: float = 0.5
    judged_kept: int = 100
    """The newest judgements of a check that count, so that one that becomes worse is noticed."""
    judged_per_node: int = 5
    """Limit of judgements on one node: many verdicts on one bad node say little of the check."""
    judged_per_tenant: int = 5
    """Judgements by tests on the nodes of one tenant that count for the nodes of others."""
    facts: frozenset[str] = frozenset()
    """Checks whose failure states a fact, such as a GPU that is gone: it acts before they have a record, no
    answer does not. Those with a bad record are in shadow even so."""
    trusted: frozenset[str] = frozenset()
    """Checks that act before they have a record; those with a bad record are in shadow even so."""
