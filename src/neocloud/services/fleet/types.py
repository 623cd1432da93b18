"""The resources of fleet: pools of nodes, their states and limits; whose a drain in Slurm is. Pure."""

import re
from dataclasses import replace
from enum import StrEnum

from neocloud.fleet.control.judging import judging
from neocloud.fleet.policy.actions import Action, Suite
from neocloud.fleet.policy.limits import DAY, MINUTE, Limits
from neocloud.services.slurm.public import FLEET_PREFIX

NODE_POOL_ID_PREFIX = "fleetpool"
HOST_POOL_ID_PREFIX = "fleethosts"
MAINTENANCE_WINDOW = "neocloud.fleet.v1.MaintenanceWindow"
MAINTENANCE_WINDOW_ID_PREFIX = "fleetwindow"


class PoolState(StrEnum):
    ACTIVE = "ACTIVE"
    BLIND = "BLIND"
    STOPPED = "STOPPED"
    DELETING = "DELETING"


class Check(StrEnum):
    """The checks that the service itself answers."""

    POD = "worker pod"
    SLURM = "slurm"
    REPORT = "node report"
    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"


LIMITS = judging().limits(
    Limits(
        trusted=frozenset(Check),
        dead_checks=frozenset({Check.POD}),
        dead_replacements=2,
        unknown_grace=MINUTE,
        cool_down=5 * MINUTE,
        burn_in=0.0,
        step_deadline={
            Action.RESET_GPU: MINUTE,
            Action.REBOOT: 3 * MINUTE,
            Action.POWER_CYCLE: MINUTE,
            Action.REIMAGE: MINUTE,
        },
        verify_deadline={Suite.QUICK: 3 * MINUTE, Suite.FULL: 3 * MINUTE},
    )
)
"""For workers that are pods: they start in seconds, and have no parts to burn in. Checks of other sources are
in shadow until they have a record."""

HOST_LIMITS = replace(
    LIMITS,
    trusted=frozenset[str](),
    per_rung=((0, DAY),),
    verify_deadline={Suite.QUICK: 365 * DAY, Suite.FULL: 365 * DAY},
)
"""For hosts: no step of the ladder is ever started, so what is not well goes to triage, where an operator
looks. An agent that does not answer fails no verification: it says nothing of the host."""


def limits_of(pool_id: str) -> Limits:
    return HOST_LIMITS if pool_id.startswith(HOST_POOL_ID_PREFIX) else LIMITS


CLUSTER_OWNER = "cluster"
"""Owner of drains of nodes that left the spec of their cluster."""
STOP_OWNER = "stop"
"""Owner of drains while the cloud is stopped with its workloads."""
HOST_MAINTENANCE = "maintenance"
SLURM_OWNERS = {
    "[neocloud] readiness: ": "check",
    "[neocloud] maintenance ": HOST_MAINTENANCE,
    "[neocloud] health:": "health-check",
    "[neocloud] retired: ": CLUSTER_OWNER,
}
"""Parts of Neocloud that drain workers in Slurm, by how their reasons start; each resumes its own."""
ADMINISTRATOR = "slurm"
"""Owner of every other drain in Slurm: an administrator of the cluster."""
FOREIGN_IN_SLURM = frozenset({*SLURM_OWNERS.values(), ADMINISTRATOR})
MAX_REASON_CHARS = 180
"""Length of a reason in Slurm."""
PLATFORM_REASON = "[neocloud] lost: "
"""Reason of workers that their cluster has set DOWN: no drain of anybody."""


def drain_owner(reason: str) -> str:
    """Return who drained a worker in Slurm with this reason; "" for the fleet controller."""
    if reason.startswith((FLEET_PREFIX, PLATFORM_REASON)):
        return ""
    return next((owner for start, owner in SLURM_OWNERS.items() if reason.startswith(start)), ADMINISTRATOR)


def plain(text: str, most: int = MAX_REASON_CHARS) -> str:
    """Return text of a probe or of Slurm, which a tenant may have written, on one line of bounded length."""
    return re.sub(r"[^\x20-\x7e]+", " ", text[: 4 * most]).strip()[:most]
