"""Hands temporary keys to a program on this machine, for as long as it runs.

AWS SDKs ask such a server as they do in a container: at AWS_CONTAINER_CREDENTIALS_FULL_URI, with a token that
only the environment of the program has, and again before a key ends. So no key is in arguments or a file.
"""

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from neocloud.client.errors import ClientError

ANSWER_SECONDS = 10


@contextmanager
def serving_keys(issue: Callable[[], Mapping[str, object]]) -> Generator[dict[str, str]]:
    """Yield the environment of the program. `issue` returns a new key in the form of the SDKs; it is called
    in threads."""
    token = secrets.token_urlsafe(32)

    class Handler(BaseHTTPRequestHandler):
        timeout = ANSWER_SECONDS

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, token.encode()):
                self._answer(403, {"code": "AccessDenied", "message": "another program's key"})
                return
            try:
                self._answer(200, issue())
            except ClientError as error:
                self._answer(400, {"code": error.code, "message": str(error)})

        def _answer(self, status: int, content: Mapping[str, object]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{server.server_port}/",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": token,
            }
        finally:
            server.shutdown()
