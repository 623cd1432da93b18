"""The shared root of a cluster as a stream, over ssh to a login node: out of it, and into it.

The program there runs in a session of root of the cluster, with the rights of one, so neither a hostile tree
nor a hostile archive reaches more than who signs in does.
"""

import os
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import IO

from neocloud.cli.commands.slurm.backup_file import CHUNK_BYTES
from neocloud.cli.output import size_text
from neocloud.cli.terminal import visible
from neocloud.client.errors import ClientError

PROGRAM = "/opt/slurm/libexec/archive"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
KEPT_BYTES = 2000
"""How much of the program's stderr is kept."""
PROGRESS_SECONDS = 5.0
NO_SIGN_IN, NOT_THERE = 255, 127


def saved_files(ssh: Sequence[str]) -> Iterator[bytes]:
    """Yield the archive of the shared root. Raises ClientError unless it was written whole."""
    with _session(ssh, "save", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(CHUNK_BYTES)
        if first and not first.startswith(ZSTD_MAGIC):
            raise ClientError(
                "FAILED_PRECONDITION",
                "The login shell of root prints text of its own, which would be part of the archive",
                "Make its start-up files, such as /root/.bashrc, print only in shells with a terminal",
            )
        yield first
        while chunk := process.stdout.read(CHUNK_BYTES):
            yield chunk
    if not first:
        raise ClientError("FAILED_PRECONDITION", "The login node sent no archive", "Try again")


def replace_files(ssh: Sequence[str], chunks: Iterable[bytes]) -> None:
    """Make the shared root what the archive says. Raises ClientError unless all of it was done."""
    with _session(ssh, "replace", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended early, and says why
            for chunk in chunks:
                process.stdin.write(chunk)
            process.stdin.close()


@contextmanager
def _session(
    ssh: Sequence[str], verb: str, *, stdin: int = subprocess.DEVNULL, stdout: int | None = subprocess.DEVNULL
) -> Generator[subprocess.Popen[bytes]]:
    command = [*ssh, f"{PROGRAM} {verb}"]
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = _Tail(process.stderr)
    try:
        yield process
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # of what was still to be written
                process.stdin.close()
        said.join()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if code:
        raise _failure(code, said.text)


def _failure(code: int, said: str) -> ClientError:
    if code == NOT_THERE:
        return ClientError(
            "FAILED_PRECONDITION",
            "The login node runs an image of an earlier release, which has no backups",
            "Its operator replaces it: neo down, then neo up",
        )
    text = visible(said.strip()) or f"exit code {code}"
    if code == NO_SIGN_IN:
        hint = "Sign in as root with `neo slurm cluster ssh`, and name the key with --identity"
        return ClientError("UNAVAILABLE", f"ssh to the login node failed: {text}", hint)
    return ClientError(
        "FAILED_PRECONDITION", f"The login node did not do it: {text}", "Remove the cause, and try again"
    )


class _Tail(Thread):
    """Keeps the end of what a program says."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._kept = b""
        self.start()

    def run(self) -> None:
        while data := os.read(self._pipe.fileno(), KEPT_BYTES):
            self._kept = (self._kept + data)[-KEPT_BYTES:]

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")


def with_progress(chunks: Iterable[bytes], show: Callable[[str], None], total: int = 0) -> Iterator[bytes]:
    """Pass chunks on, and show how much that was every few seconds."""
    done, shown = 0, time.monotonic()
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            show(f"{size_text(done)} of {size_text(total)}" if total else size_text(done))
