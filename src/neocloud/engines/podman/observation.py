"""From Podman's container rows to what the border calls a pod. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from neocloud.engines.base import ObservedPod, PodPhase, Reference
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.processes import LOST
from neocloud.engines.podman.translate import SANDBOX

Row = Mapping[str, Any]
_GONE = ("exited", "stopped", LOST)


def by_pod(rows: Iterable[Row]) -> dict[Reference, list[Row]]:
    """Containers of each pod, sandbox included."""
    pods: dict[Reference, list[Row]] = defaultdict(list)
    for row in rows:
        labels = row["Labels"]
        pods[Reference("Pod", labels["neocloud.namespace"], labels["neocloud.pod"])].append(row)
    return dict(pods)


def container_name(row: Row) -> str:
    return row["Labels"]["neocloud.container"]


def is_running(row: Row) -> bool:
    return row["State"] == "running"


def started_at(row: Row) -> datetime | None:
    return datetime.fromtimestamp(row["StartedAt"], UTC) if row["StartedAt"] > 0 else None


def observed_pod(
    reference: Reference,
    rows: Iterable[Row],
    pod: Pod | None,
    *,
    ip: str | None,
    ready: bool,
    restart_count: int,
) -> ObservedPod:
    """`ready` is the prober's word; a pod that does not run whole is never ready."""
    rows = [row for row in rows if container_name(row) != SANDBOX]
    wanted = len(pod.containers if pod else rows)
    phase, message = phase_of(rows, wanted, pod.policy if pod else "Always")
    starts = [start for row in rows if (start := started_at(row))]
    whole = len(rows) == wanted and all(is_running(row) for row in rows)
    return ObservedPod(
        reference=reference,
        phase=phase,
        ready=ready and whole,
        ip=ip,
        labels=dict(pod.labels) if pod else {},
        restart_count=restart_count,
        started_at=min(starts) if starts else None,
        message=message,
    )


def phase_of(rows: Sequence[Row], wanted: int, restart_policy: str) -> tuple[PodPhase, str]:
    """As Kubernetes counts; a stopped container that its policy starts again makes the pod pending."""
    gone = [row for row in rows if row["State"] in _GONE]
    message = "; ".join(f"{container_name(row)} ended with code {row['ExitCode']}" for row in gone)
    if len(rows) < wanted:
        return PodPhase.PENDING, "Not all containers exist; applying the pod again makes them."
    if any(is_running(row) for row in rows):
        return PodPhase.RUNNING, message
    if len(gone) < len(rows):
        return PodPhase.PENDING, message or "Not started yet."
    failed = any(row["ExitCode"] for row in gone)
    if restart_policy == "Always" or (restart_policy == "OnFailure" and failed):
        return PodPhase.PENDING, f"{message}; applying the pod again starts it."
    return (PodPhase.FAILED if failed else PodPhase.SUCCEEDED), message
