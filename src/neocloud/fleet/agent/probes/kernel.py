# pyright: strict
"""The kernel log from a cursor on: the records that may tell of a fault."""

import time
from pathlib import Path

from neocloud.fleet.agent.found import Found, KernelLines
from neocloud.fleet.agent.tree import Tree
from neocloud.fleet.kernel_log import LONGEST_TEXT, Record, finding_of
from neocloud.fleet.kernel_log_reader import Cursor, KernelLog

CHECK = "kernel_log"
MOST_LINES = 512
"""That are kept of one batch."""
BOOT_ID = "proc/sys/kernel/random/boot_id"


def probe(tree: Tree, boot: str, sequence: int) -> Found:
    """Read on from a sequence of this boot."""
    found = Found()
    device = tree.path("dev/kmsg")
    log = KernelLog(Path(tree.root, "no-cursor-file"), device=device, boot_id=tree.path(BOOT_ID))
    if log.cursor.boot_id == boot:
        log.cursor = Cursor(boot, sequence)
    try:
        with log as opened:
            batch = opened.read()
    except FileNotFoundError:
        found.leave_out("There is no /dev/kmsg here, as in a container", CHECK)
        return found
    except PermissionError:
        found.leave_out("The kernel log is for root, and this is not", CHECK)
        return found
    kept = [record for record in batch.records if _matters(record)]
    lines = [(each.time_s, each.sequence or 0, each.message[:LONGEST_TEXT]) for each in kept[-MOST_LINES:]]
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    lost = batch.lost if sequence else 0
    found.kernel = KernelLines(
        batch.cursor.sequence, lost + len(kept) - len(lines), len(batch.records), now, lines
    )
    return found


def _matters(record: Record) -> bool:
    """A GPU off the bus is told in several lines of the driver, so all of its own are kept."""
    return record.message.startswith("NVRM: ") or finding_of(record) is not None
