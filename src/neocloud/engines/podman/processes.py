# pyright: strict
"""Processes of containers: which containers have one on this machine, and the control groups they run in.

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neocloud.engines.podman.layout import Layout

_PROCESSES = Path("/proc")
_CONTAINER_ID = re.compile(rb"[0-9a-f]{64}")
LOST = "lost"
"""State, beside those of Podman, of a container that was killed with its monitor."""
_KILLED = 137
_MONITOR_CHECKS = 300
_MONITOR_PAUSE_SECONDS = 0.05
_ROOT = Path("/sys/fs/cgroup")
_DEATH_SECONDS = 5.0


def living_containers() -> set[str]:
    """Return every container id in the command line (of a monitor) or the control group of a process."""
    found: set[bytes] = set()
    for process in _PROCESSES.glob("[0-9]*"):
        for name in ("cmdline", "cgroup"):
            found.update(_CONTAINER_ID.findall(_content(process / name)))
    return {id_.decode() for id_ in found}


def with_lost(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return Podman's container rows, with state LOST for running containers without a process."""
    suspects = {row["Id"] for row in rows if row["State"] == "running" and not _has_process(row)}
    lost = suspects - living_containers() if suspects else suspects
    return [{**row, "State": LOST, "ExitCode": _KILLED} if row["Id"] in lost else row for row in rows]


async def monitor_ended(container_id: str) -> bool:
    """Wait for the end of the monitor of an ended container; return False if it takes too long.

    The monitor runs Podman's clean-up, which removes the network, even one created for the next start.
    """
    for _ in range(_MONITOR_CHECKS):
        if not await asyncio.to_thread(_has_monitor, container_id):
            return True
        await asyncio.sleep(_MONITOR_PAUSE_SECONDS)
    return False


def _has_monitor(container_id: str) -> bool:
    """Return whether the container has a monitor; those of commands in it do not count."""
    mark = f"\0-u\0{container_id}\0".encode()
    return any(mark in _content(process / "cmdline") for process in _PROCESSES.glob("[0-9]*"))


def _has_process(row: Mapping[str, Any]) -> bool:
    """Return whether its first process exists and is its own; process ids are reused."""
    return row["Id"].encode() in _content(_PROCESSES / str(row["Pid"]) / "cgroup")


def _content(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def end_processes(layout: Layout) -> None:
    """Kill the processes left in our groups and wait for their end."""
    for process_id in _processes(layout):
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


def _processes(layout: Layout) -> set[int]:
    found: set[int] = set()
    for group in _groups(layout):
        for listing in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(line) for line in listing.read_text().split()}
    return found
