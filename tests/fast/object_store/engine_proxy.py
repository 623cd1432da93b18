"""A proxy before an S3 engine, which answers as it is set: the engine of a store of blobs that fails."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class EngineProxy:
    engine: tuple[str, int]
    faults: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """The method and what goes wrong with the next requests that have it: "503", "500" (after success),
    "cut", "stall", "spoilt", "page" (404 of a proxy), "denied"."""
    is_down: bool = False
    """Connections are refused."""
    seen: list[str] = field(default_factory=list[str])
    released: threading.Event = field(default_factory=threading.Event)
    """Ends what is stalled."""

    def fault(self, method: str) -> str:
        for number, (of, what) in enumerate(self.faults):
            if of == method:
                del self.faults[number]
                return what
        return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: EngineProxy

    def handle(self) -> None:
        if self.proxy.is_down:
            with suppress(OSError):  # as a reset, which a client cannot take for an answer
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return
        super().handle()

    def do_GET(self) -> None:
        proxy = self.proxy
        if proxy.is_down:
            self.close_connection = True
            return None
        proxy.seen.append(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(length)
        if len(body) < length:  # the client was killed
            self.close_connection = True
            return None
        fault = proxy.fault(self.command)
        if fault == "503":
            return self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        if fault == "page":
            return self._answer(404, b"<html>no such page</html>")
        if fault == "denied":
            return self._answer(403, b"<Error><Code>InvalidAccessKeyId</Code></Error>")
        if fault == "stall":
            proxy.released.wait(30)
            self.close_connection = True
            return None
        with closing(HTTPConnection(*proxy.engine, timeout=30)) as connection:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            content = answer.read()
        if fault == "500":
            return self._answer(500, b"<Error><Code>InternalError</Code></Error>")
        if fault == "spoilt" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        return self._answer(answer.status, content, is_cut=fault == "cut", **headers)

    do_PUT = do_DELETE = do_HEAD = do_POST = do_GET

    def _answer(self, status: int, body: bytes, *, is_cut: bool = False, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body[: len(body) // 2] if is_cut else body)
        if is_cut:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


_HOP_BY_HOP = ("content-length", "connection", "keep-alive", "transfer-encoding", "server", "date")


@contextmanager
def engine_proxy(engine: tuple[str, int]) -> Iterator[tuple[EngineProxy, str]]:
    """Serve it on loopback; yield it with its URL."""
    proxy = EngineProxy(engine)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=lambda: server.serve_forever(0.01), daemon=True)
        thread.start()
        try:
            yield proxy, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            proxy.released.set()
            server.shutdown()
            thread.join(10)
