"""Requests to addresses that a tenant names: JSON over https, to the public internet.

A name is resolved once, every address it has is checked, and the connection goes to a checked address, so
that a name that changes meanwhile leads nowhere else. Redirects are not followed; the size and duration of an
answer, and the number of concurrent requests, are bounded. Private addresses, and http on this machine, need
a setting.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypedDict, Unpack
from urllib.parse import SplitResult, urlsplit

import httpx

from neocloud.core.destinations import PRIVATE_NETWORKS, is_allowed_destination, is_loopback
from neocloud.core.json_values import is_object

CONNECT_SECONDS = 5.0
MAX_SECONDS = 10.0
"""For one request with its whole answer."""
MAX_ANSWER_BYTES = 512 * 1024
MAX_CONCURRENT = 16
"""Concurrent requests of the whole cloud; sign-ins, which need no token, can cause them."""
KNOWN_HOSTS: Mapping[str, frozenset[str]] = {
    "accounts.google.com": frozenset({"oauth2.googleapis.com", "www.googleapis.com"}),
}
"""Issuers whose endpoints are known to be on other hosts."""


class RequestContent(TypedDict, total=False):
    """The content of a POST."""

    data: Mapping[str, str]
    auth: tuple[str, str]


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Unanswered(Exception):
    """Says why there is no answer, for the log, not for the caller."""


def new_http() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=CONNECT_SECONDS, follow_redirects=False)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, the preferred one first."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


@dataclass(frozen=True)
class Outgoing:
    """Sends these requests. There is one for the whole cloud."""

    http: Callable[[], httpx.AsyncClient] = new_http
    resolve: Resolve = resolve
    allow_private: bool = False
    """Whether requests may go to private addresses and to this machine, the latter over plain http too."""
    hosts: frozenset[str] = frozenset()
    """Hosts that may serve endpoints of any issuer, besides the issuer's own origin."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_slots", asyncio.Semaphore(MAX_CONCURRENT))

    def may_serve(self, issuer: str, endpoint: str) -> bool:
        """Return whether an endpoint is on the issuer's origin, or by https on a host that is known or
        allowed."""
        try:
            own, other = _parts(issuer), _parts(endpoint)
        except Unanswered:
            return False
        if _origin(own) == _origin(other):
            return True
        more = self.hosts | KNOWN_HOSTS.get(own.hostname or "", frozenset())
        return other.scheme == "https" and (other.port or 443) == 443 and (other.hostname or "") in more

    async def fetch(self, verb: str, url: str, **more: Unpack[RequestContent]) -> dict[str, object]:
        """Return the JSON object at the address. Raises Unanswered."""
        try:
            async with asyncio.timeout(MAX_SECONDS), self._slots:  # type: ignore[attr-defined]
                status, body = await self._fetch(verb, _parts(url), more)
        except TimeoutError:
            raise Unanswered(f"no answer within {MAX_SECONDS:.0f} s") from None
        if status != HTTPStatus.OK:
            raise Unanswered(f"it answers with status {status}")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise Unanswered("its answer is not JSON") from None
        if not is_object(document):
            raise Unanswered("its answer is not a JSON object")
        return document

    async def _fetch(self, verb: str, url: SplitResult, more: RequestContent) -> tuple[int, bytes]:
        host = url.hostname or ""
        addresses = await self._addresses(url)
        for address in addresses:
            literal = f"[{address}]" if ":" in address else address
            port = f":{url.port}" if url.port else ""
            target = url._replace(netloc=f"{literal}{port}", fragment="").geturl()
            named = f"[{host}]" if ":" in host else host
            headers = {"host": f"{named}{port}", "accept-encoding": "identity", "accept": "application/json"}
            try:
                # The certificate is checked against the name, though the address is what is connected to.
                extensions = {"sni_hostname": host}
                return await self._send(verb, target, headers=headers, extensions=extensions, **more)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if address == addresses[-1]:
                    raise Unanswered(f"it does not answer ({type(error).__name__})") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise Unanswered(f"it does not answer ({type(error).__name__})") from None
        raise Unanswered("its name leads to no address")

    async def _addresses(self, url: SplitResult) -> Sequence[str]:
        """Return all addresses of the host. Raises Unanswered unless every one is allowed."""
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await self.resolve(url.hostname or "", port)
        except (OSError, UnicodeError):
            raise Unanswered("its name leads to no address") from None
        opened = PRIVATE_NETWORKS if self.allow_private else ()
        for address in found:
            if not is_allowed_destination(address, opened):
                raise Unanswered(
                    f"its address {address} is not public: neo config set allow-private-issuers true"
                )
            if url.scheme != "https" and not is_loopback(address):
                raise Unanswered("its address is not https")
        return found

    async def _send(self, verb: str, url: str, **more: Any) -> tuple[int, bytes]:
        async with self.http() as client, client.stream(verb, url, **more) as answer:
            body = b""
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise Unanswered(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
            return answer.status_code, body


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        raise Unanswered("its address is not a URL") from None
    if parts.scheme not in ("https", "http") or not parts.hostname or "@" in parts.netloc or not has_port:
        raise Unanswered("its address is not https")
    return parts


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").casefold(), port
