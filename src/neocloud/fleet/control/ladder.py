"""Choose the next repair: the rungs from the one that the evidence asks for, each with a budget."""

from collections.abc import Iterable

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.limits import Limits

STEPS = (Action.RESET_GPU, Action.REBOOT, Action.POWER_CYCLE, Action.REIMAGE)
"""The rungs that the controller starts by itself; above them people decide, from triage."""


def next_action(
    wanted: Action, tried: Action, history: Iterable[tuple[Action, float]], now: float, limits: Limits
) -> Action:
    """Return the lowest rung not below `wanted`, above `tried`, and within its budget, or TRIAGE.

    A spent budget goes to triage and not to the next rung: the same repair over and over is a lemon.
    """
    past = list(history)
    for action in STEPS:
        if action.rung < wanted.rung or action.rung <= tried.rung:
            continue
        return action if within_budget(action, past, now, limits) else Action.TRIAGE
    return Action.TRIAGE


def within_budget(
    action: Action, history: Iterable[tuple[Action, float]], now: float, limits: Limits
) -> bool:
    starts = [at for each, at in history if each is action]
    return all(sum(1 for at in starts if at > now - seconds) < times for times, seconds in limits.per_rung)
