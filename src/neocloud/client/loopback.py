"""Receiver on the loopback address for the browser's reply after a sign-in (RFC 8252)."""

import hmac
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

from neocloud.client.errors import ClientError

PATH = "/callback"
_DONE = "You are signed in. You can close this window and go back to the terminal."
_REFUSED = "The sign-in was not completed. Go back to the terminal."


class BrowserReply:
    """Listens as soon as it is created, so that the address is known before the browser opens."""

    def __init__(self, port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.timeout = 0.2

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{PATH}"

    def wait(self, state: str, timeout_seconds: float) -> tuple[str, str]:
        """Return the code and the issuer that the provider names ("" if none, RFC 9207).

        Replies with another state are ignored.
        """
        self._server.state = state
        deadline = time.monotonic() + timeout_seconds
        while self._server.answer is None:
            if time.monotonic() > deadline:
                raise ClientError("DEADLINE_EXCEEDED", "The sign-in in the browser timed out", "Try again")
            self._server.handle_request()
        answer = self._server.answer
        if "code" not in answer:
            why = answer.get("error_description") or answer.get("error") or "no reason given"
            raise ClientError("UNAUTHENTICATED", f"The provider did not sign you in: {why}")
        return answer["code"], answer.get("iss", "")

    def close(self) -> None:
        self._server.server_close()

    def __enter__(self) -> "BrowserReply":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(HTTPServer):
    state = ""
    answer: Mapping[str, str] | None = None


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 5

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        found = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path != PATH or not hmac.compare_digest(
            found.get("state", "").encode(), self.server.state.encode()
        ):
            self._reply(404, "There is nothing here.")
            return
        self.server.answer = found
        self._reply(200, _DONE if "code" in found else _REFUSED)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the address contains the code."""

    def _reply(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)
