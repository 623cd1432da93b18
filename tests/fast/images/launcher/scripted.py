"""A unix socket that answers as it is set: QEMU or a guest's agent, without either."""

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = Callable[[dict[str, Any]], list[Any]]
"""From a request to the messages that go back; bytes go as they are."""


class Scripted:
    """Serves one client at a time until `close`; `asked` holds what was asked."""

    def __init__(self, path: Path, answer: Answer, greeting: Any = None) -> None:
        self.path, self.asked = path, []
        self._answer, self._greeting = answer, greeting
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(60)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            with client:
                self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        if self._greeting is not None:
            client.sendall(_line(self._greeting))
        for line in client.makefile("rb"):
            request = json.loads(line.lstrip(b"\xff"))
            self.asked.append(request)
            messages = self._answer(request)
            for message in messages:
                client.sendall(message if isinstance(message, bytes) else _line(message))
            if not messages:
                return


def _line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"
