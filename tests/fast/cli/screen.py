"""Run a command line in a terminal of a width, in this process, and read what it shows."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import pytest

_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ROWS = 50


def on_screen(width: int, run: Callable[[], object]) -> str:
    """Return what a command shows in a terminal of this width, without colours."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, width, 0, 0))
    seen = bytearray()

    def read() -> None:
        with suppress(OSError):  # nobody writes any more
            while block := os.read(master, 65536):
                seen.extend(block)

    saved = [os.dup(descriptor) for descriptor in (0, 1)]
    for descriptor in (0, 1):
        os.dup2(terminal, descriptor)
    reader = Thread(target=read)
    reader.start()
    try:
        with pytest.MonkeyPatch.context() as patch, os.fdopen(terminal, "w") as stream:
            patch.setattr(sys, "stdout", stream)
            patch.setenv("TERM", "xterm")
            patch.delenv("COLUMNS", raising=False)
            run()
    finally:
        for descriptor, before in zip((0, 1), saved, strict=True):
            os.dup2(before, descriptor)
            os.close(before)
        reader.join()
        os.close(master)
    return _STYLES.sub("", seen.decode()).replace("\r\n", "\n")
