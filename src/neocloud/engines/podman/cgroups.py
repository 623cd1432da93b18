"""The control groups below which all our containers run.

Podman leaves the outer group behind, and in it the processes that wait for the exit codes of commands. Both
are ours by their place, and both go when the engine is destroyed.
"""

import contextlib
import os
import select
import signal
from pathlib import Path

from neocloud.engines.podman.layout import Layout

_ROOT = Path("/sys/fs/cgroup")
_DEATH_SECONDS = 5.0


def end_processes(layout: Layout) -> None:
    """Kill what is left in our groups and wait until it is gone."""
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
    """One per controller with version 1, one in all with version 2."""
    name = layout.cgroup.lstrip("/")
    return [path for path in (_ROOT / name, *_ROOT.glob(f"*/{name}")) if path.is_dir()]


def _processes(layout: Layout) -> set[int]:
    found: set[int] = set()
    for group in _groups(layout):
        for listing in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(line) for line in listing.read_text().split()}
    return found
