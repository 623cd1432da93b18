"""A registry in this process: the part of the OCI distribution protocol that pulls, from OCI layouts.

A test double of the network, for tests of what the engine does with images. It asks for a password.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

USER, PASSWORD = "puller", "only-in-memory"
_KEY = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """`folder` has an OCI layout for each image; `gate`, if set, holds up blobs until it is released."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = threading.Event()
        """Set once somebody has asked for a blob."""
        self.gate: threading.Event | None = None

    @contextmanager
    def serving(self) -> Iterator[None]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()

    def source(self, image: str) -> str:
        """Return the name of an image with its digest."""
        [listed] = json.loads((self.folder / image / "index.json").read_text())["manifests"]
        return f"{self.host}/test/{image}@{listed['digest']}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers["Authorization"] != _KEY:
                    return self._answer(401, b"{}")
                if self.path == "/v2/":
                    return self._answer(200, b"{}")
                *_, image, kind, digest = self.path.split("/")
                if kind == "blobs":
                    registry.asked.set()
                    if registry.gate is not None:
                        registry.gate.wait(60)
                blob = registry.folder / image / "blobs" / "sha256" / digest.removeprefix("sha256:")
                if not blob.is_file():
                    return self._answer(404, b"{}")
                return self._answer(200, blob.read_bytes(), _MANIFEST if kind == "manifests" else "")

            do_HEAD = do_GET

            def _answer(self, status: int, body: bytes, kind: str = "") -> None:
                self.send_response(status)
                self.send_header("WWW-Authenticate", 'Basic realm="test"')
                self.send_header("Content-Type", kind or "application/octet-stream")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
