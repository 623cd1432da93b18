"""Containers: their rows as Podman lists them, the pods they belong to, and their processes on this machine.

Podman learns of a container's end from the container's monitor. If both are killed together, Podman keeps
showing the container as running, so the kernel is consulted.

All our containers run below one control group. Podman leaves the outer group behind, and in it the processes
that wait for the exit codes of commands; both are removed when the engine is destroyed.
"""

import asyncio
import contextlib
import os
import re
import select
import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from neocloud.engines.base import ObservedPod, PodPhase, Reference
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.translate import (
    FIRST_ID_LABEL,
    SANDBOX,
    SUB_PATHS,
    SUB_PATHS_LABEL,
    podman_names,
)


class Row(TypedDict):
    """A container, as Podman's list shows it."""

    Id: str
    State: str
    Pid: int
    StartedAt: int
    """Unix time; negative before the first start."""
    ExitCode: int
    Labels: Mapping[str, str]


_PROCESSES = Path("/proc")
_CONTAINER_ID = re.compile(rb"[0-9a-f]{64}")
LOST = "lost"
"""State, beside those of Podman, of a container that was killed with its monitor."""
_KILLED = 137
_MONITOR_CHECKS = 300
_MONITOR_PAUSE_SECONDS = 0.05
_ROOT = Path("/sys/fs/cgroup")
_DEATH_SECONDS = 5.0
_KILL_PASSES = 5


def living_containers() -> set[str]:
    """Return every container id in the command line (of a monitor) or the control group of a process."""
    found: set[bytes] = set()
    for process in _PROCESSES.glob("[0-9]*"):
        for name in ("cmdline", "cgroup"):
            found.update(_CONTAINER_ID.findall(_content(process / name)))
    return {id_.decode() for id_ in found}


def with_lost(rows: Sequence[Row]) -> list[Row]:
    """Return Podman's container rows, with state LOST for running containers without a process."""
    suspects = {row["Id"] for row in rows if row["State"] == "running" and not _has_process(row)}
    lost = suspects - living_containers() if suspects else suspects
    return [{**row, "State": LOST, "ExitCode": _KILLED} if row["Id"] in lost else row for row in rows]


async def monitors_ended(container_ids: Collection[str]) -> bool:
    """Wait for the end of the monitors of ended containers; return False if it takes too long.

    The monitor runs Podman's clean-up, which removes the network, even one created for the next start.
    """
    for _ in range(_MONITOR_CHECKS):
        if not await asyncio.to_thread(_has_monitor, container_ids):
            return True
        await asyncio.sleep(_MONITOR_PAUSE_SECONDS)
    return False


def _has_monitor(container_ids: Collection[str]) -> bool:
    """Return whether one of the containers has a monitor; those of commands in them do not count."""
    marks = {f"\0-u\0{each}\0".encode() for each in container_ids}
    commands = (_content(process / "cmdline") for process in _PROCESSES.glob("[0-9]*"))
    return any(mark in command for command in commands if b"\0-u\0" in command for mark in marks)


def _has_process(row: Row) -> bool:
    """Return whether its first process exists and is its own; process ids are reused."""
    return row["Id"].encode() in _content(_PROCESSES / str(row["Pid"]) / "cgroup")


def _content(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def end_processes(layout: Layout) -> None:
    """Kill the processes left in our groups and wait for their end; those that they start meanwhile, too."""
    for _ in range(_KILL_PASSES):
        found = processes_in_groups(layout)
        if not found:
            return
        for process_id in found:
            _kill(process_id)


def _kill(process_id: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process_id)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], _DEATH_SECONDS)
        finally:
            os.close(handle)


def remove_groups(layout: Layout) -> None:
    """Remove our groups, the inner ones first."""
    for group in _groups(layout):
        inner = (path for path in group.rglob("*") if path.is_dir())
        for path in [*sorted(inner, key=lambda path: len(path.parts), reverse=True), group]:
            with contextlib.suppress(OSError):
                path.rmdir()


def _groups(layout: Layout) -> list[Path]:
    """Return our groups: one for each controller with version 1, a single one with version 2."""
    name = layout.cgroup.lstrip("/")
    return [path for path in (_ROOT / name, *_ROOT.glob(f"*/{name}")) if path.is_dir()]


def processes_in_groups(layout: Layout) -> set[int]:
    """Return the ids of the processes in our groups: containers, their monitors and clean-ups."""
    found: set[int] = set()
    for group in _groups(layout):
        for listing in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(line) for line in listing.read_text().split()}
    return found


_ENDED = ("exited", "stopped", LOST)


def by_pod(rows: Iterable[Row]) -> dict[Reference, list[Row]]:
    """Return the containers of each pod, including the sandbox."""
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
    last_exit: int | None = None,
) -> ObservedPod:
    """Return the state of a pod. `ready` is the prober's result; an incomplete pod is never ready."""
    rows = [row for row in rows if container_name(row) != SANDBOX]
    expected = len(pod.containers if pod else rows)
    phase, message = phase_of(rows, expected, pod.policy if pod else "Always")
    starts = [start for row in rows if (start := started_at(row))]
    is_complete = len(rows) == expected and all(is_running(row) for row in rows)
    return ObservedPod(
        reference=reference,
        phase=phase,
        ready=ready and is_complete,
        ip=ip,
        labels=dict(pod.labels) if pod else {},
        restart_count=restart_count,
        started_at=min(starts) if starts else None,
        message=message,
        last_exit=last_exit,
    )


def phase_of(rows: Sequence[Row], expected: int, restart_policy: str) -> tuple[PodPhase, str]:
    """Return the phase as Kubernetes defines it, and a message.

    A stopped container that its policy starts again makes the pod pending.
    """
    ended = [row for row in rows if row["State"] in _ENDED]
    message = "; ".join(f"{container_name(row)} ended with code {row['ExitCode']}" for row in ended)
    if len(rows) < expected:
        return PodPhase.PENDING, "Not all containers exist; applying the pod again makes them."
    if any(is_running(row) for row in rows):
        return PodPhase.RUNNING, message
    if len(ended) < len(rows):
        return PodPhase.PENDING, message or "Not started yet."
    failed = any(row["ExitCode"] for row in ended)
    if restart_policy == "Always" or (restart_policy == "OnFailure" and failed):
        return PodPhase.PENDING, f"{message}; applying the pod again starts it."
    return (PodPhase.FAILED if failed else PodPhase.SUCCEEDED), message


def is_lost(pod: Pod, rows: Sequence[Row]) -> bool:
    """Return whether a container lost its monitor: Podman cannot start it again, so it has to be replaced."""
    return pod.policy != "Never" and any(row["State"] == LOST for row in rows)


def is_current(pod: Pod, rows: Sequence[Row], first: int) -> bool:
    """Return whether the containers are those that the pod describes. `first`: its first id of the host."""
    spec = pod.fingerprint
    present = {container_name(row) for row in rows}
    has_sub_paths = bool(pod.sub_paths)
    return present == set(podman_names(pod, first)) and all(
        row["Labels"].get("neocloud.spec") == spec
        and row["Labels"].get(FIRST_ID_LABEL, "0") == str(first)
        and (not has_sub_paths or row["Labels"].get(SUB_PATHS_LABEL) == SUB_PATHS)
        for row in rows
    )


def to_start(pod: Pod, rows: Sequence[Row]) -> list[Row]:
    """Return the containers to start, sandbox first; those in an earlier sandbox's network count, too."""
    sandbox_start = max((row["StartedAt"] for row in rows if container_name(row) == SANDBOX), default=0)

    def is_due(row: Row) -> bool:
        if is_running(row):
            return row["StartedAt"] < sandbox_start
        if row["State"] in ("created", "configured", "initialized"):
            return True
        is_sandbox = container_name(row) == SANDBOX
        return is_sandbox or pod.policy == "Always" or (pod.policy == "OnFailure" and row["ExitCode"] != 0)

    return sorted(filter(is_due, rows), key=lambda row: container_name(row) != SANDBOX)
