"""The metadata service: HTTP on the metadata address, for the guest alone.

The header `Metadata: true` shows that a program of the guest sent the request on purpose: a request that was
forged through one of its web servers lacks it.
"""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from launcher.desired import Machine

TOKEN_FILE = Path("/etc/neocloud/identity/token.json")
_TOKEN_FIELDS = ("access_token", "expires_at")
_INSTANCE_DATA = ("id", "parent_id", "name", "hostname", "region")
"""Properties of the machine; published clients in a guest read their project from `parent_id`."""
_PLAIN, _JSON = "text/plain; charset=utf-8", "application/json"

Answer = tuple[HTTPStatus, str, str]
"""Status, content type, content."""


class Metadata:
    """The answers by path. The token file is read each time, since the control plane renews it."""

    def __init__(self, machine: Machine, token_file: Path = TOKEN_FILE) -> None:
        self._machine, self._token_file = machine, token_file
        values = {"instance/id": machine.id, "instance/hostname": machine.hostname}
        values |= {f"instance-data/{name}": getattr(machine, name) for name in _INSTANCE_DATA}
        self._paths: dict[str, Callable[[], Answer]] = {"/v1/iam/sa/token": self._token}
        self._paths |= {f"/v1/{path}": _plain(value) for path, value in values.items() if value}

    def answer(self, client: str, path: str, headers: Any) -> Answer:
        if IPv4Address(client) != self._machine.interface.address.ip:
            return HTTPStatus.FORBIDDEN, _PLAIN, "Only the machine itself may call this"
        if headers.get("Metadata", "").lower() != "true" or headers.get("X-Forwarded-For") is not None:
            return HTTPStatus.FORBIDDEN, _PLAIN, "Send the header `Metadata: true`, and call this directly"
        known = self._paths.get(path.partition("?")[0])
        if known is None:
            return HTTPStatus.NOT_FOUND, _PLAIN, f"There are: {', '.join(self._paths)}"
        return known()

    def _token(self) -> Answer:
        try:
            record = json.loads(self._token_file.read_text())
            token = {name: record[name] for name in _TOKEN_FIELDS}
        except FileNotFoundError:
            return HTTPStatus.NOT_FOUND, _PLAIN, "This machine has no service account"
        except (OSError, ValueError, KeyError, TypeError):
            return HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, "The token is being renewed; try again"
        return HTTPStatus.OK, _JSON, json.dumps(token)


def _plain(value: str) -> Callable[[], Answer]:
    return lambda: (HTTPStatus.OK, _PLAIN, value)


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"
    server_version, sys_version = "neocloud", ""
    timeout = 10  # a guest that sends nothing holds no thread

    def do_GET(self) -> None:
        status, kind, content = self.server.metadata.answer(self.client_address[0], self.path, self.headers)
        body = (content + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the container's output is the guest's console."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], metadata: Metadata) -> None:
        self.metadata = metadata
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections that the guest closes."""


def serve_metadata(metadata: Metadata, address: str, port: int = 80) -> _Server:
    """Answer in a thread of its own until the process ends or `shutdown` is called."""
    server = _Server((address, port), metadata)
    threading.Thread(target=server.serve_forever, name="metadata", daemon=True).start()
    return server
