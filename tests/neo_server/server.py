"""Forks a process for each command line of `neo`: `python server.py DESCRIPTOR` of a socket that listens.

It ends with its standard input.

It has one thread whenever it forks: gRPC starts its own with the first channel, which only children open.
"""

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
from typing import NoReturn

from neocloud.cli.main import NeoGroup, main
from neocloud.core.contract.cache import descriptor_set

STARTS_THREADS = {"evaluate"}
"""Commands that import numpy, whose OpenBLAS starts threads."""


def load() -> None:
    """Import what command lines need."""
    for name, entry in NeoGroup.entries.items():
        if name in STARTS_THREADS:
            continue
        source = (entry.source or name.replace("-", "_")).partition(":")[0]
        module = source if source.startswith("neocloud.") else f"{NeoGroup.package}.{source}"
        importlib.import_module("neocloud.cli.resources.commands" if entry.is_derived else module)
    descriptor_set()
    gc.collect()
    gc.freeze()


def received(connection: socket.socket) -> tuple[list[int], list[bytes]]:
    """Return the open files, and the folder, arguments and variables that a client sent."""
    head, files, _, _ = socket.recv_fds(connection, 8, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        more = connection.recv(size - len(text))
        if not more:
            raise EOFError("the client has gone")
        text += more
    return files, text.split(b"\0")


def run(files: list[int], parts: list[bytes]) -> NoReturn:
    """Become `neo` in a new process."""
    folder, number, *words = parts
    arguments, variables = words[: int(number)], words[int(number) :]
    for at, file in enumerate(files):
        os.dup2(file, at)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environb.update(dict(each.split(b"=", 1) for each in variables))
    sys.argv = ["neo", *map(os.fsdecode, arguments)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
    raise SystemExit(0)


class Server:
    def __init__(self, listener: socket.socket) -> None:
        self._selector, self._listener = selectors.DefaultSelector(), listener
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, lambda: sys.exit(0))

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj in self._selector.get_map():  # not closed by the one before
                    key.data()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            try:
                files, parts = received(connection)
            except (EOFError, ConnectionError):
                return
            for file in files:
                stack.callback(os.close, file)
            if len(os.listdir("/proc/self/task")) != 1:
                raise SystemExit("a process with threads must not fork")
            process_id = os.fork()
            if process_id == 0:
                stack.pop_all()
                self._listener.close()
                self._selector.close()
                connection.close()
                run(files, parts)
            self._watch(process_id, connection.dup())

    def _watch(self, process_id: int, connection: socket.socket) -> None:
        ended = os.pidfd_open(process_id)

        def end() -> None:
            code = os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
            self._selector.unregister(ended)
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection)
            os.close(ended)
            with contextlib.suppress(OSError):
                connection.send(bytes([code if code >= 0 else 128 - code]))
            connection.close()

        def signalled() -> None:
            """Hand on what its client was sent; a client that was killed takes its process with it."""
            try:
                numbers = connection.recv(16)
            except ConnectionError:
                numbers = b""
            for number in numbers or [signal.SIGKILL]:
                signal.pidfd_send_signal(ended, number)
            if not numbers:
                self._selector.unregister(connection)

        self._selector.register(ended, selectors.EVENT_READ, end)
        self._selector.register(connection, selectors.EVENT_READ, signalled)


if __name__ == "__main__":
    load()
    Server(socket.socket(fileno=int(sys.argv[1]))).serve()
