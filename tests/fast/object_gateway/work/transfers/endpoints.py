"""An S3 endpoint with faults: it has objects in memory, and answers as it is set."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass
class FakeEndpoint:
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """All in one bucket, whatever its name."""
    redirects_to: str = ""
    status: int = 0
    """Of every answer; 0: success."""
    error_body: bytes = b""
    list_body: bytes = b""
    failing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """What goes wrong with the next GETs of a key, "" of the list: "500", "cut", "etag", "slow", "gone"."""
    tagging: bytes = b""
    """The answer to questions for tags; b"": the access key may not ask."""
    is_reversed: bool = False
    """It lists keys in the wrong order."""
    seen: list[str] = field(default_factory=list[str])
    released: threading.Event = field(default_factory=threading.Event)
    """Lets "slow" requests continue."""

    def listing(self) -> bytes:
        keys = sorted(self.objects, reverse=self.is_reversed)
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{self.etag(key)}&quot;</ETag>"
            "</Contents>"
            for key in keys
        )
        return self.list_body or f"<ListBucketResult>{listed}</ListBucketResult>".encode()

    def etag(self, key: str) -> str:
        return hashlib.md5(self.objects[key], usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    endpoint: FakeEndpoint

    def do_GET(self) -> None:
        endpoint = self.endpoint
        endpoint.seen.append(f"{self.command} {self.path} {self.headers}")
        key = unquote(urlsplit(self.path).path.partition("/")[2].partition("/")[2])
        faults = endpoint.failing.get(key, [])
        asks_tags = urlsplit(self.path).query.startswith("tagging")
        fault = faults.pop(0) if faults and self.command == "GET" and not asks_tags else ""
        if endpoint.redirects_to:
            self._answer(307, b"", Location=endpoint.redirects_to)
        elif endpoint.status or fault == "500":
            self._answer(endpoint.status or 500, endpoint.error_body)
        elif not key:
            self._answer(200, endpoint.listing())
        elif key not in endpoint.objects or fault == "gone":
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif asks_tags:
            self._answer(200 if endpoint.tagging else 403, endpoint.tagging)
        else:
            self._send(key, fault)

    do_HEAD = do_GET

    def _send(self, key: str, fault: str) -> None:
        body, etag = self.endpoint.objects[key], self.endpoint.etag(key)
        if fault == "etag":
            etag = "0" * 32
        status, asked = 200, self.headers.get("Range", "")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            body, status = body[int(first) : int(last) + 1], 206
        if fault == "slow":
            self.endpoint.released.wait(30)
        self._answer(status, body, is_cut=fault == "cut", **{"ETag": f'"{etag}"', "x-amz-tagging-count": "1"})

    def _answer(self, status: int, body: bytes, *, is_cut: bool = False, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):  # the client has given up
                self.wfile.write(body[: len(body) // 2] if is_cut else body)
        if is_cut:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def fake_endpoint(endpoint: FakeEndpoint) -> Iterator[tuple[str, list[str]]]:
    """Serve it on loopback; yield its URL, and the requests with their headers."""
    handler = type("Handler", (_Handler,), {"endpoint": endpoint})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=lambda: server.serve_forever(0.01), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", endpoint.seen
        finally:
            endpoint.released.set()
            server.shutdown()
            thread.join(10)
