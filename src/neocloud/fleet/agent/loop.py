"""The agent that stays: checks in intervals, and writes what changed to the spool.

Restarts lose and repeat nothing: a record has the marks of the checks that it reports and the place in the
kernel log after it, so the records tell what was reported, whatever was saved beside them.
"""

import gc
import json
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neocloud.core.osfiles import read_private, write_file
from neocloud.fleet.agent import delivery, gpu_use_json, hardware
from neocloud.fleet.agent.child import Children
from neocloud.fleet.agent.document import to_json
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.history import History
from neocloud.fleet.agent.host import HostChecks, Memory, since_boot
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.kernel_faults import KernelFaults
from neocloud.fleet.agent.metrics_file import write_metrics_file
from neocloud.fleet.agent.spool import Spool
from neocloud.fleet.policy.policy import Policy

STATE = "state.json"
MOST_STATE_BYTES = 16 << 20
MOST_OF_RECORD = 64
"""Checks in one record, whose document stays below what its reader takes."""
HEARTBEAT_S = 60.0
INVENTORY_EVERY = 30
"""In intervals: parts seldom change, and all drivers are asked."""
logger = logging.getLogger(__name__)


@dataclass
class Reported:
    """The data of a boot that is, or was, in the spool."""

    memory: Memory
    n: int = 0
    """Number of the last record."""
    marks: dict[str, str] = field(default_factory=dict[str, str])


class Agent:
    """The checks of this host, and the spool that they are written to."""

    def __init__(
        self,
        tree: Tree,
        policy: Policy,
        expected: Expected,
        folder: Path,
        spool: Spool,
        *,
        host: str = "",
        now: Callable[[], float] = since_boot,
        children: Children | None = None,
        last: Path | None = None,
        is_pod: bool = False,
        metrics_file: Path | None = None,
    ) -> None:
        """`last`: the folder for the last answers of the checks. `is_pod`: it runs in a container, and its
        host has an agent of its own. `metrics_file` is written after each interval, for the textfile
        collector of a node exporter.
        """
        self._last, self._metrics_file = last, metrics_file
        self._tree, self._children, self._is_pod = tree, children or Children(), is_pod
        self._spool, self._now, self._host = spool, now, host or socket.gethostname()
        self._state_file = folder / STATE
        self._reported = _restored(self._state_file, spool, tree.boot_id())
        spool.continue_after(self._reported.n)
        self.checks = HostChecks(
            tree, policy, expected, self._reported.memory, now=now, children=self._children, is_pod=is_pod
        )
        self._last_beat = -HEARTBEAT_S
        self._is_kept_back = False

    def step(self, interval: int) -> None:
        """Run what is due, and write what changed."""
        self._drop_acknowledged()
        self.checks.run(interval)
        self._write_changes()
        self._write_last()
        if interval % INVENTORY_EVERY == 0:
            self._write_inventory()
        self._write_metrics()
        if self._now() - self._last_beat >= HEARTBEAT_S:
            self._beat()

    def _write_last(self) -> None:
        if self._last is None:
            return
        try:
            delivery.write_last(self._last, self.checks.document(self._host))
            gpu_use_json.write(self._last, self.checks)
        except OSError as error:
            logger.warning("The agent cannot write the last answers of its checks: %s", error)

    def _write_inventory(self) -> None:
        if self._last is None:
            return
        try:
            found = hardware.read(self._tree, self._host, self._children, is_pod=self._is_pod)
            delivery.write_inventory(self._last, found)
        except OSError as error:
            logger.warning("The parts of this host cannot be written: %s", error)

    def _drop_acknowledged(self) -> None:
        try:
            if self._spool.has_acknowledged():
                self._save()  # before the records that say it are dropped
                self._spool.drop_acknowledged()
        except OSError as error:
            logger.warning("The agent cannot drop forwarded records: %s", error)

    def _write_changes(self) -> None:
        marks = {name: said.mark for name, said in self.checks.said.items()}
        changed = sorted(name for name, mark in marks.items() if self._reported.marks.get(name) != mark)
        if not changed:
            return
        kernel = self._reported.memory.kernel
        for start in range(0, len(changed), MOST_OF_RECORD):
            part = changed[start : start + MOST_OF_RECORD]
            document = self.checks.document(self._host, part)
            new = {name: marks[name] for name in part}
            content = {"document": to_json(document), "marks": new, "kernel": kernel.new_json()}
            if not self._append("changes", content):
                return
            self._reported.marks |= new
            kernel.unreported = []

    def _write_metrics(self) -> None:
        if self._metrics_file is None:
            return
        try:
            document = self.checks.document(self._host)
            write_metrics_file(self._metrics_file, document, self.checks.readings)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._metrics_file, error)

    def _beat(self) -> None:
        counts = self.checks.counts()
        content = {
            "host": self._host,
            "boot": self._reported.memory.boot,
            "since_boot_s": self._now(),
            "checks": counts,
            "spool_bytes": self._spool.size,
        }
        if self._append("heartbeat", content):
            self._last_beat = self._now()
            try:
                self._save()
            except OSError as error:
                logger.warning(
                    "The agent cannot save its state, so counters begin again after a restart: %s", error
                )

    def _append(self, kind: str, content: dict[str, Any]) -> bool:
        """Return whether the record is written. An unsaved record is still a change at the next step."""
        try:
            is_written = self._spool.append(kind, content)
            why = "is full"
        except OSError as error:
            is_written, why = False, f"cannot be written ({error.strerror})"
        if not is_written and not self._is_kept_back:
            logger.warning("The spool %s: changes are kept back until there is room again", why)
        if is_written and self._is_kept_back:
            logger.warning("The spool has room again; what changed meanwhile is written")
        self._is_kept_back = not is_written
        return is_written

    def _save(self) -> None:
        memory = self._reported.memory
        state = {
            "boot": memory.boot,
            "n": self._spool.last,
            "marks": self._reported.marks,
            "history": memory.history.to_json(),
            "kernel": memory.kernel.to_json(),
        }
        memory.kernel.unreported = []
        write_file(self._state_file, json.dumps(state, separators=(",", ":")), durable=True)


def _restored(path: Path, spool: Spool, boot: str) -> Reported:
    """Return what was reported of this boot: the saved state, and the records after it."""
    reported = _saved(path, boot)
    for record in spool.records(after=reported.n):
        try:
            if record["kind"] == "changes" and record["document"]["boot"] == boot:
                reported.marks |= record["marks"]
                reported.memory.kernel.apply(record["kernel"])
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("Record %s of the spool is damaged and left out: %r", record["n"], error)
        reported.n = record["n"]
    return reported


def _saved(path: Path, boot: str) -> Reported:
    empty = Reported(Memory(boot))
    try:
        given: dict[str, Any] = json.loads(read_private(path, MOST_STATE_BYTES))
        if given["boot"] != boot:
            return Reported(Memory(boot), int(given["n"]))
        memory = Memory(boot, History.from_json(given["history"]), KernelFaults.from_json(given["kernel"]))
        return Reported(
            memory, int(given["n"]), {str(key): str(mark) for key, mark in given["marks"].items()}
        )
    except FileNotFoundError:
        return empty
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        logger.warning("%s cannot be used, so known faults are reported again: %s", path, error)
        return empty


def watch(agent: Agent, interval_s: float, *, now: Callable[[], float] = since_boot) -> None:
    """Check in intervals until a signal ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    gc.freeze()  # what is there now stays, so collections need not touch its pages, shared with probes
    number, started = 0, now()
    while True:
        agent.step(number)
        number += 1
        left = started + number * interval_s - now()
        if left < 0:  # it took longer than an interval, or the host slept
            started = now() - number * interval_s
        if signal.sigtimedwait(ENDING, max(0.0, left)) is not None:
            return


ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
