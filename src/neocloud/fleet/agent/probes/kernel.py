"""The kernel log from a cursor on: the records that may report a fault."""

import stat
import time
from contextlib import ExitStack

from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import KernelLines, ProbeResult
from neocloud.fleet.policy.kernel_log import LONGEST_TEXT, KernelMessage, finding_of
from neocloud.fleet.policy.kernel_log_reader import Cursor, KernelLog

CHECK = "kernel_log"
MOST_LINES = 512
"""Lines of one batch that are kept."""
BOOT_ID = "proc/sys/kernel/random/boot_id"


class KernelProbe:
    """The log of one boot. The agent keeps /dev/kmsg open, and its children read on where the last ended.

    A reader that opens it again gets all records that the kernel still has, thousands each time.
    """

    def __init__(self, tree: Tree, boot: str) -> None:
        self._tree, self._boot = tree, boot
        self._kept = ExitStack()
        self._log: KernelLog | None = None
        self._why = ""

    def open(self, sequence: int) -> None:
        """Make ready to read from a sequence on, before the child is started."""
        if self._log is None:
            self._log, self._why = self._opened()
        if self._log is not None:
            self._log.cursor = Cursor(self._boot, sequence)

    def read(self) -> ProbeResult:
        """Return what was added to the log. For a child."""
        found = ProbeResult()
        if self._log is None:
            found.leave_out(self._why, CHECK)
            return found
        sequence = self._log.cursor.sequence
        batch = self._log.read()
        kept = [record for record in batch.records if _matters(record)]
        lines = [
            (each.time_s, each.sequence or 0, each.message[:LONGEST_TEXT]) for each in kept[-MOST_LINES:]
        ]
        lost = (batch.lost if sequence else 0) + len(kept) - len(lines)
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        found.kernel = KernelLines(batch.cursor.sequence, lost, len(batch.records), now, lines)
        return found

    def end(self, *, is_answered: bool) -> None:
        """After a child gave no answer, the next reads again from the cursor; so it does in a plain file."""
        if not is_answered or not self._is_device():
            self._kept.close()
            self._log = None

    def _opened(self) -> tuple[KernelLog | None, str]:
        log = KernelLog(
            self._tree.path("no-cursor-file"),
            device=self._tree.path("dev/kmsg"),
            boot_id=self._tree.path(BOOT_ID),
        )
        try:
            return self._kept.enter_context(log), ""
        except FileNotFoundError:
            return None, "There is no /dev/kmsg here, as in a container"
        except PermissionError:
            return None, "The kernel log is for root, and this is not"

    def _is_device(self) -> bool:
        return stat.S_ISCHR(self._tree.path("dev/kmsg").stat().st_mode) if self._log else False


def _matters(record: KernelMessage) -> bool:
    """The driver reports a GPU off the bus in several lines, so all of its lines are kept."""
    return record.message.startswith("NVRM: ") or finding_of(record) is not None
