"""Copy the guest's console to the container's output, line by line.

QEMU writes it in pieces of a few letters, each of which would be a record of the container's log.
"""

import os
import select
import threading
from typing import IO

_PATIENCE_SECONDS = 0.2
"""The time after which an incomplete line, such as a prompt, is written."""
_LONGEST = 4096


def pump(source: IO[bytes], target: int) -> threading.Thread:
    """Copy until the source ends, in a thread of its own."""
    thread = threading.Thread(target=_copy, args=(source, target), name="console", daemon=True)
    thread.start()
    return thread


def _copy(source: IO[bytes], target: int) -> None:
    waiting = b""
    while True:
        ready, _, _ = select.select([source], [], [], _PATIENCE_SECONDS if waiting else None)
        chunk = os.read(source.fileno(), 65536) if ready else b""
        waiting += chunk
        is_over = bool(ready) and not chunk
        whole = len(waiting) if is_over or not ready or len(waiting) > _LONGEST else waiting.rfind(b"\n") + 1
        _write(target, waiting[:whole])
        waiting = waiting[whole:]
        if is_over:
            return


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]
