"""The prepared server: a process that has imported the server's program, and serves when it is asked to.

It waits in a read of a pipe. The process with the other end of the pipe can start it; when that end is
closed, the prepared server ends.
"""

import os
import stat
import sys
from contextlib import suppress

from neocloud.core.child_process import Child
from neocloud.core.process import Process

PREPARED = "--prepared"
"""The option of a server that waits on its standard input for its turn."""


class PreparedServer:
    """A server that waits for its turn, as the supervisor sees it."""

    def __init__(self, process: Process, pipe: int) -> None:
        self.process = process
        self.pipe = pipe
        """The descriptor that is written to."""

    @classmethod
    def start(cls, command: list[str], server: Child) -> "PreparedServer":
        """Start one, which writes to the server's log. Raises OSError, with nothing running."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            with server.open_log() as output:
                process = Process.start([*command, PREPARED], output, stdin=reading)
        except OSError:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return cls(process, writing)

    @property
    def handle(self) -> str:
        """Return the words by which a process finds it that has inherited the pipe."""
        return f"{self.pipe}:{self.process.pid}:{self.process.began}"

    @classmethod
    def handed(cls, handle: str) -> "PreparedServer | None":
        """Return the one that this process was handed by the one that started it; None where there is none.

        None also for the words of another process, as after an upgrade that goes back.
        """
        with suppress(ValueError, OSError):
            pipe, pid, began = (int(word) for word in handle.split(":"))
            if pipe > sys.stderr.fileno() and stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.set_inheritable(pipe, False)
                process = Process.find(pid, began)
                if process is not None:
                    return cls(process, pipe)
        return None

    def serve(self, server: Child) -> Process | None:
        """Let it serve as the recorded server; None where it has ended meanwhile."""
        server.open_log().close()
        try:
            os.write(self.pipe, os.fsencode(server.log_file) + b"\n")
        except BrokenPipeError:
            return None
        finally:
            self.close()
        server.take(self.process)
        return self.process

    def close(self) -> None:
        """Let it end, unless it serves or another process has the pipe."""
        os.close(self.pipe)


def has_turn() -> bool:
    """Wait for the turn of this prepared server; then write to the log that the supervisor names.

    False: it is no longer needed.
    """
    log = sys.stdin.buffer.readline().rstrip(b"\n")
    if not log:
        return False
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for descriptor, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, descriptor)
    return True
