"""Texts of `neo ps` beside a state: missing workers and replicas, repairs, how a program ended."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from neocloud.cli.progress import duration
from neocloud.core import contract

RECENT_SECONDS = 3600.0
"""How long a repair is news."""
_AWAY = re.compile(r"DRAIN|DOWN|FAIL|NOT_RESPONDING|UNKNOWN|FUTURE")
_NOT_STARTED = re.compile(r"POWER(ED|ING)_(DOWN|UP)|CLOUD")
"""Elastic workers that run when a job needs them."""
_SPARE = "neocloud: spare"
_CODE = re.compile(r"\bended with code (\d{1,3})\b")
_HOW = re.compile(r"\bended \(((?:exit code|signal) \d{1,3})\)")
"""How a replica's message says that the model server ended."""
_REST = re.compile(r" and |;")
"""Before what the reason of a machine continues with: a policy, or what to do."""
MOST_TOLD = 3


def in_words(state: str, item: Any, now: datetime) -> tuple[str, Sequence[str]]:
    """Return the state of a resource with what it hides, and lines that say more."""
    status = getattr(item, "status", None)
    fields = status.DESCRIPTOR.fields_by_name if status is not None else ()
    if "slurm_version" in fields and state == "READY":
        return _cluster(state, item, now)
    if "wanted_replicas" in fields:
        return _deployment(state, item, now)
    if "state_details" in fields and status is not None and status.HasField("state_details"):
        return _program(state, item), ()
    return state, ()


def _cluster(state: str, item: Any, now: datetime) -> tuple[str, Sequence[str]]:
    nodes = [node for node in item.status.nodes if not _NOT_STARTED.search(node.slurm_state)]
    away = [node for node in nodes if _AWAY.search(node.slurm_state) and not _is_spare(node)]
    if away:
        told = [f"{item.metadata.name}: {node.name} takes no jobs: {_why(node)}" for node in away[:3]]
        more = [f"{item.metadata.name}: {len(away) - 3} more take no jobs"] if len(away) > 3 else []
        return f"DEGRADED ({len(nodes) - len(away)} of {len(nodes)} workers)", [*told, *more]
    repaired = [(seconds, node) for node in nodes if (seconds := _since_repair(node, now)) is not None]
    if not repaired:
        return state, ()
    seconds, _ = min(repaired, key=lambda each: each[0])
    names = ", ".join(sorted(node.name for _, node in repaired)[:3])
    count = f"{len(nodes)} of {len(nodes)} workers"
    return f"{state} ({count}; {names} repaired {duration(seconds)} ago)", ()


def _deployment(state: str, item: Any, now: datetime) -> tuple[str, Sequence[str]]:
    status, name = item.status, item.metadata.name
    replicas = list(status.replicas)
    kinds = {each.state: contract.enum_name(each, "state") for each in replicas}
    how = next((found[1] for found in map(_HOW.search, [status.message, *_messages(replicas)]) if found), "")
    if state != "READY":
        return (f"{state} ({how})" if how and state in ("ERROR", "STARTING") else state), ()
    ready = [each for each in replicas if kinds[each.state] == "READY"]
    away = [each for each in replicas if _is_broken(each, kinds[each.state])]
    count = f"{len(ready)} of {max(status.wanted_replicas, len(replicas))} replicas"
    if away:
        told = [f"{name}: {each.name} is {kinds[each.state]}: {_told(each)}" for each in away[:MOST_TOLD]]
        more = [f"{name}: {len(away) - MOST_TOLD} more are not ready"] if len(away) > MOST_TOLD else []
        return f"DEGRADED ({count})", [*told, *more]
    repaired = [(seconds, each) for each in ready if (seconds := _since_repair(each, now)) is not None]
    if not repaired:
        return state, ()
    seconds, newest = min(repaired, key=lambda each: each[0])
    found = _HOW.search(newest.message)
    why = f" after {found[1]}" if found else ""
    return f"{state} ({count}; {newest.name} restarted {duration(seconds)} ago{why})", ()


def _messages(replicas: Sequence[Any]) -> Sequence[str]:
    return [each.message for each in replicas]


def _told(replica: Any) -> str:
    return replica.message or "it does not answer"


def _is_broken(replica: Any, state: str) -> bool:
    """Return whether a replica that had started is away; one that starts for the first time is not."""
    return state == "UNHEALTHY" or (state in ("PENDING", "LOADING") and replica.restarts > 0)


def of_machine(state: str, name: str, machine: Any, now: datetime) -> tuple[str, Sequence[str]]:
    """Return the state of an instance with what its machine says, and lines that say more."""
    ended = f", {machine.ended}" if machine.ended else ""
    if state == "RUNNING" and machine.power not in ("running", ""):
        return f"DEGRADED ({machine.power})", [f"{name}: {machine.reason or machine.power}"]
    if state == "RUNNING":
        seconds = _since_repair(machine, now)
        return (state if seconds is None else f"{state} (restarted {duration(seconds)} ago{ended})"), ()
    if state in ("STOPPED", "ERROR") and machine.reason:
        return f"{state} ({_REST.split(machine.reason)[0]}{ended})", ()
    return state, ()


def _is_spare(node: Any) -> bool:
    return node.reason.startswith(_SPARE)


def _why(node: Any) -> str:
    return f"{node.slurm_state}, {node.reason}" if node.reason else node.slurm_state


def _since_repair(node: Any, now: datetime) -> float | None:
    if not node.restarts or not node.HasField("started_at"):
        return None
    seconds = (now - contract.to_datetime(node.started_at)).total_seconds()
    return max(0.0, seconds) if seconds <= RECENT_SECONDS else None


def _program(state: str, item: Any) -> str:
    """Say how the program of an endpoint or a job ended, where that is why it is in this state."""
    found = _CODE.search(item.status.state_details.message)
    if found is None:
        return state
    code = int(found[1])
    return f"{state} (signal {code - 128})" if 128 < code < 193 else f"{state} (exit code {code})"
