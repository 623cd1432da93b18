"""A client of QMP, QEMU's control protocol, over its unix socket, for one thread at a time.

A guest may have taken over QEMU: an answer that never ends, or that is no message, is an error.
"""

import json
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

_LONGEST = 16 * 2**20
"""Most bytes of one message; one of a machine with all its disks has some hundred thousand."""


class QmpError(Exception):
    """QEMU refused a command, or does not run."""


class Qmp:
    """A connection. Events that arrive before an answer are kept for `event`."""

    def __init__(self, path: Path, timeout: float = 20.0) -> None:
        self._events: deque[dict[str, Any]] = deque()
        self._left = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(path))
            self._receive()  # the greeting
            self.ask("qmp_capabilities")
        except OSError as error:
            self._socket.close()
            raise QmpError(f"QEMU does not answer on {path}: {error}. Does the machine run?") from None

    def ask(self, command: str, **arguments: Any) -> Any:
        """Return the result of the command."""
        request: dict[str, Any] = {"execute": command}
        if arguments:
            request["arguments"] = {key.replace("_", "-"): value for key, value in arguments.items()}
        return self.ask_with(request)

    def ask_with(self, request: dict[str, Any]) -> Any:
        """Return the result of a complete request."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while True:
                message = self._receive()
                if "event" in message:
                    self._events.append(message)
                elif "error" in message:
                    raise QmpError(f"{request['execute']}: {message['error'].get('desc')}")
                elif "return" in message:
                    return message["return"]
        except OSError as error:
            raise QmpError(f"{request['execute']}: QEMU went away ({error})") from None

    def event(self, timeout: float) -> dict[str, Any] | None:
        """Return the next event; None when none arrived in time."""
        if self._events:
            return self._events.popleft()
        before = self._socket.gettimeout()
        self._socket.settimeout(timeout)
        try:
            return self._receive()
        except TimeoutError:
            return None
        except OSError as error:
            raise QmpError(f"QEMU went away ({error})") from None
        finally:
            self._socket.settimeout(before)

    def wait_for_event(self, name: str, seconds: float, **data: Any) -> dict[str, Any]:
        """Return the event of this name with these data; drop earlier events. Raises QmpError on timeout."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            event = self.event(left)
            if event and event["event"] == name and data.items() <= event.get("data", {}).items():
                return event
        raise QmpError(f"QEMU did not say {name} within {seconds:.0f} s")

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Qmp":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self) -> dict[str, Any]:
        while b"\n" not in self._left:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise ConnectionResetError("connection closed")
            self._left += chunk
            if len(self._left) > _LONGEST:
                raise ConnectionAbortedError(f"a message has more than {_LONGEST} bytes")
        line, self._left = self._left.split(b"\n", 1)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ConnectionAbortedError("it sent what is no message")
        return message
