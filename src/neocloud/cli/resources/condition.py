"""What `neo ps` says beside a state: workers that take no jobs, repairs, how a program ended."""

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


def in_words(state: str, item: Any, now: datetime) -> tuple[str, Sequence[str]]:
    """Return the state of a resource with what it hides, and lines that say more."""
    status = getattr(item, "status", None)
    fields = status.DESCRIPTOR.fields_by_name if status is not None else {}
    if "slurm_version" in fields and state == "READY":
        return _cluster(state, item, now)
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
