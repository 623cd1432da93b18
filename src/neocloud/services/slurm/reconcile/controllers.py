"""The controllers of a cluster with two: which one is in control, and the end of a first that stands still.

The heartbeat in the volume that both share says who is in control. Slurm and the image's `guard-controller`
take care that never both are, without this module. They cannot end a first controller that stands still as a
whole, with its guard: its port still accepts connections, so clients would wait for it instead of
trying the other.
"""

import logging
import re
from dataclasses import dataclass

from neocloud.engines.base import Engine, EngineError, EngineUnavailable, PodPhase, Reference
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.render import CONTROLLER_PODS

logger = logging.getLogger(__name__)

SAY_IN_CONTROL = ("/usr/local/lib/neocloud/guard-controller", "in-control")
MAX_SILENCE_SECONDS = 20
"""Since the last heartbeat; after more of them no controller is in control."""
FRESH_SECONDS = 5
"""The one in control writes a heartbeat every three seconds."""
ANSWER_SECONDS = 5.0
_ANSWER = re.compile(rb"([01]) (-?[0-9]{1,10})\s*")


@dataclass(frozen=True)
class _Heartbeat:
    controller: str
    age_seconds: int


async def find_control(engine: Engine, scope: ClusterScope) -> None:
    """Set the controller in control, and remove the pod of a first one that stands still."""
    if len(scope.controllers) == 1:
        return
    heartbeat = await _last_heartbeat(engine, scope)
    if heartbeat is None or heartbeat.age_seconds > MAX_SILENCE_SECONDS:
        return
    scope.in_control = heartbeat.controller
    before = next((row.name for row in scope.cluster.status.controllers if row.in_control), "")
    if before and before != scope.in_control:
        logger.info("Failover: %s is in control in place of %s", scope.in_control, before)
    if heartbeat.age_seconds <= FRESH_SECONDS and _stands_still(scope):
        # Killed, it does nothing any more. The pod is made again.
        await engine.remove([Reference("Pod", scope.namespace, CONTROLLER_PODS[0])])
        logger.info("%s stands still while the other is in control; it is started again", CONTROLLER_PODS[0])
        scope.observation = await engine.observe(scope.namespace)


def _stands_still(scope: ClusterScope) -> bool:
    """Return whether the first controller's port has been open for two runs in which the second is in
    control. One that starts asks for control before it opens its port.
    """
    first, second = CONTROLLER_PODS
    pod = scope.observation.pod(first)
    before = {row.name: row for row in scope.cluster.status.controllers}
    return (
        scope.in_control == second
        and pod is not None
        and pod.ready
        and first in before
        and before[first].ready
        and before[second].in_control
    )


async def _last_heartbeat(engine: Engine, scope: ClusterScope) -> _Heartbeat | None:
    """Return the heartbeat as the first pod that answers reads it."""
    for name in CONTROLLER_PODS:
        pod = scope.observation.pod(name)
        if pod is None or pod.phase is not PodPhase.RUNNING:
            continue
        try:
            result = await engine.exec(
                Reference("Pod", scope.namespace, name), SAY_IN_CONTROL, timeout_seconds=ANSWER_SECONDS
            )
        except EngineUnavailable:
            raise
        except EngineError:
            continue
        found = _ANSWER.fullmatch(result.stdout)
        return _Heartbeat(CONTROLLER_PODS[int(found[1])], int(found[2])) if found else None
    return None
