"""Call the agent inside the guest (qemu-guest-agent), which may be missing, slow or hostile."""

import json
import random
import socket
from pathlib import Path
from typing import Any


class AgentError(Exception):
    """The guest's agent is missing or has refused a command."""


def ask_agent(path: Path, command: str, timeout: float, **arguments: Any) -> Any:
    """Return the result of the command. Synchronise first, since an earlier answer may still arrive."""
    token = random.randrange(1 << 30)  # no secret  # nosec B311
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout)
            link.connect(str(path))
            link.sendall(b"\xff" + _request("guest-sync-delimited", {"id": token}))
            lines = link.makefile("rb")
            while _answer(lines.readline(_LONGEST)).get("return") != token:
                pass
            link.sendall(_request(command, arguments))
            answer = _answer(lines.readline(_LONGEST))
    except TimeoutError:
        raise AgentError("The guest's agent does not answer. Does qemu-guest-agent run in it?") from None
    except OSError as error:
        raise AgentError(f"The guest's agent cannot be reached: {error}") from None
    if "error" in answer:
        raise AgentError(f"The guest's agent refused {command}: {answer['error'].get('desc')}")
    return answer.get("return")


_LONGEST = 1 << 20


def _request(command: str, arguments: dict[str, Any]) -> bytes:
    request: dict[str, Any] = {"execute": command}
    if arguments:
        request["arguments"] = arguments
    return json.dumps(request).encode() + b"\n"


def _answer(line: bytes) -> dict[str, Any]:
    """Return an object, whatever the guest sent."""
    if not line:
        raise ConnectionResetError("connection closed")
    try:
        value = json.loads(line.rpartition(b"\xff")[2])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
