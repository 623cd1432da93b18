# pyright: standard
"""The connection to a certificate authority, which is not trusted with more than it needs.

Only URLs of its directory's own origin are called, redirects are not followed, and the number and size of
answers are limited.
"""

import ssl
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import httpx
import requests
from acme import client
from josepy.jwa import RS256
from josepy.jwk import JWK

from neocloud import __version__
from neocloud.control_plane.public_certificate.issued import OrderFailed

REQUEST_SECONDS = 15.0
"""Without a byte of an answer."""
MAX_REQUESTS, MAX_REQUESTS_PER_NAME = 200, 20
"""The most requests of one order. Each name takes at least three, and one more for each poll of its check."""
MAX_ANSWER_BYTES = 256 * 1024
MAX_ERROR_CHARS = 400


class Network(client.ClientNetwork):
    """Signs requests as the library does, and sends them within limits."""

    def __init__(self, directory: str, key: JWK, names: int = 1) -> None:
        """`names`: for how many of them a certificate is ordered."""
        super().__init__(key, alg=RS256)
        self._directory = directory
        self._limit = self._left = MAX_REQUESTS + MAX_REQUESTS_PER_NAME * names
        self.retry_after = 0.0
        """The delay in seconds that the last answer asked for."""
        # What this machine trusts, which may include a company's own authority; httpx has a list of its own.
        trust = ssl.create_default_context()
        self._http = httpx.Client(verify=trust, timeout=REQUEST_SECONDS, follow_redirects=False)

    def close(self) -> None:
        self._http.close()
        self.session.close()

    def _send_request(self, method: str, url: str, *args: Any, **more: Any) -> requests.Response:
        check_origin(self._directory, url)
        self._left -= 1
        if self._left < 0:
            raise OrderFailed(f"The order was given up after {self._limit} requests.")
        own = {"Accept-Encoding": "identity", "User-Agent": f"neocloud/{__version__}"}
        headers = {**more.get("headers", {}), **own}
        host = urlsplit(url).netloc
        try:
            with self._http.stream(method, url, content=more.get("data"), headers=headers) as answer:
                body = b""
                for chunk in answer.iter_raw():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise OrderFailed(f"An answer of {host} has more than {MAX_ANSWER_BYTES} bytes.")
        except httpx.HTTPError as error:
            what = clean(str(error) or type(error).__name__)
            raise OrderFailed(f"{host} cannot be reached: {what}.") from error
        if answer.is_redirect:
            raise OrderFailed(
                f"{host} redirects, which is not followed. Check `neo config get acme-directory`."
            )
        self.retry_after = _seconds(answer.headers.get("retry-after", ""))
        if answer.is_error and "json" not in answer.headers.get("content-type", ""):
            raise OrderFailed(f"{host} answers with status {answer.status_code}.", self.retry_after)
        return _as_library_reads(answer, body)


def _as_library_reads(answer: httpx.Response, body: bytes) -> requests.Response:
    found = requests.Response()
    found.status_code = answer.status_code
    found.headers.update(answer.headers)
    found.encoding = "utf-8"
    found.raw = BytesIO(body)
    return found


def check_origin(directory: str, url: str) -> None:
    """Raises OrderFailed. An authority has no reason to name other hosts, as in the operator's network."""
    try:
        own, found = (urlsplit(str(each)) for each in (directory, url))
        is_own = found.scheme == "https" and (own.hostname, own.port or 443) == (
            found.hostname,
            found.port or 443,
        )
    except ValueError:
        is_own = False
    if not is_own:
        host = urlsplit(directory).netloc
        raise OrderFailed(f"{host} names the URL {clean(str(url))}, which is not its own.")


def clean(text: str) -> str:
    """Return what another party said as one line without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:MAX_ERROR_CHARS]


def _seconds(retry_after: str) -> float:
    with suppress(ValueError, TypeError, OverflowError):
        if retry_after.isdecimal():
            return float(retry_after)
        at = parsedate_to_datetime(retry_after)
        return max(0.0, (at - datetime.now(at.tzinfo)).total_seconds())
    return 0.0
