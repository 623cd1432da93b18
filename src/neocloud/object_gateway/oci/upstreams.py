"""Registries elsewhere that the operator has named, as the gateway reads them for its mirrors.

The operator's word opens the address of the registry itself. Where its answers lead, to tokens and to blobs,
is the registry's word: such addresses have to be public and https, and each one is checked when it is
connected to. Everything is bounded in size and time. The caller compares what arrives with its digest.
"""

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import httpcore
import orjson

from neocloud.object_gateway.oci.documents import ACCEPTED
from neocloud.object_gateway.oci.upstream_registries import Upstream
from neocloud.object_store.image_types import MAX_MANIFEST_BYTES
from neocloud.s3_client.network import DestinationRefused, checked_pool

MOST_HOPS = 6
"""Requests for one thing: two of them may be for a token, before and after it is there."""
MOST_TOKEN_BYTES = 64 * 1024
TOKEN_SECONDS = 240.0
"""A token is used again for so long, whatever it says of itself."""
MOST_TOKENS = 1000
TIMEOUTS = {"connect": 10.0, "read": 30.0, "write": 30.0, "pool": 60.0}
SLOW_SECONDS, SLOW_BYTES_PER_SECOND = 60.0, 4096
"""A body may take so many seconds, and one more for each so many bytes."""
_PARAMETER = re.compile(r'([a-z]+)="([^"]{0,500})"')
_MOVED = frozenset({301, 302, 303, 307, 308})


class UpstreamError(Exception):
    """The registry elsewhere does not have it, or does not answer; the message says which."""

    def __init__(self, message: str, *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class UpstreamRegistry:
    """Methods raise UpstreamError."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        scheme = urlsplit(upstream.url).scheme
        self._own = checked_pool(scheme, allow_private=True)
        self._others = checked_pool("https", allow_private=False)
        self._tokens: dict[str, tuple[str, float]] = {}

    async def close(self) -> None:
        await self._own.aclose()
        await self._others.aclose()

    async def manifest(self, repository: str, reference: str) -> tuple[str, bytes]:
        """Return media type and content."""
        path = f"/v2/{repository}/manifests/{reference}"
        async with self._opened(path, repository, ", ".join(ACCEPTED)) as (headers, chunks):
            content = await _whole(chunks, MAX_MANIFEST_BYTES)
            return headers.get("content-type", ""), content

    @asynccontextmanager
    async def blob(self, repository: str, digest: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        path = f"/v2/{repository}/blobs/{digest}"
        async with self._opened(path, repository, "*/*") as (_, chunks):
            yield chunks

    @asynccontextmanager
    async def _opened(
        self, path: str, repository: str, accept: str
    ) -> AsyncGenerator[tuple[Mapping[str, str], AsyncIterator[bytes]]]:
        """Send a request with a token, if one is asked for, and follow where the answer leads."""
        url, has_asked = self.upstream.url + path, False
        for _ in range(MOST_HOPS):
            headers = {"Accept": accept}
            token = self._token(repository)
            if token and self._is_own(url):
                headers["Authorization"] = f"Bearer {token}"
            async with self._sent(url, headers) as response:
                found = _headers(response)
                if response.status == 200:
                    yield found, _chunks(response)
                    return
            if response.status == 401 and not has_asked and self._is_own(url):
                has_asked = True
                await self._sign_in(found.get("www-authenticate", ""), repository)
            elif response.status in _MOVED and found.get("location"):
                url = self._next(url, found["location"])
            else:
                raise self._refusal(response.status)
        raise UpstreamError(f"{self.upstream.name} leads from one address to another.")

    @asynccontextmanager
    async def _sent(self, url: str, headers: Mapping[str, str]) -> AsyncGenerator[httpcore.Response]:
        is_own = self._is_own(url)
        parts = urlsplit(url)
        if not is_own and (parts.scheme != "https" or parts.username):
            raise UpstreamError(f"{self.upstream.name} leads to an address that is not https.")
        pool = self._own if is_own else self._others
        own = {"Host": parts.netloc, "User-Agent": "neocloud-mirror", "Accept-Encoding": "identity"}
        sent = {**own, **headers}
        try:
            async with pool.stream(
                "GET", url, headers=list(sent.items()), extensions={"timeout": TIMEOUTS}
            ) as response:
                yield response
        except DestinationRefused as error:
            raise UpstreamError(
                f"{self.upstream.name} leads to an address that is not on the public internet."
            ) from error
        except (
            *(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException),
            httpcore.UnsupportedProtocol,
        ) as error:
            raise UpstreamError(f"{self.upstream.name} does not answer ({type(error).__name__}).") from error

    async def _sign_in(self, challenge: str, repository: str) -> None:
        """Get a token for pulling, of nobody, as the registry says."""
        kind, _, rest = challenge[:4000].partition(" ")
        given = dict(_PARAMETER.findall(rest))
        if kind.lower() != "bearer" or not given.get("realm"):
            raise UpstreamError(f"{self.upstream.name} asks for a password, and the mirror has none.")
        query = {"scope": f"repository:{repository}:pull"}
        query |= {"service": given["service"]} if given.get("service") else {}
        realm = self._next(self.upstream.url, f"{given['realm']}?{urlencode(query)}")
        async with self._sent(realm, {}) as response:
            if response.status != 200:
                raise self._refusal(response.status)
            content = await _whole(_chunks(response), MOST_TOKEN_BYTES)
        try:
            answer: Any = orjson.loads(content)
            token = str(answer.get("token") or answer["access_token"])
        except (orjson.JSONDecodeError, KeyError, AttributeError):
            token = ""
        if not re.fullmatch(r"[!-~]{1,16384}", token):
            raise UpstreamError(f"{self.upstream.name} gave no token.")
        if len(self._tokens) >= MOST_TOKENS:
            self._tokens.clear()
        self._tokens[repository] = (token, time.monotonic() + TOKEN_SECONDS)

    def _token(self, repository: str) -> str:
        token, until = self._tokens.get(repository, ("", 0.0))
        return token if time.monotonic() < until else ""

    def _next(self, url: str, location: str) -> str:
        """Return the address that an answer leads to. It is any text."""
        try:
            found = urljoin(url, location)
            httpcore.URL(found)
            urlsplit(found).port  # noqa: B018  raises ValueError
        except (ValueError, UnicodeError) as error:
            raise UpstreamError(
                f"{self.upstream.name} resolves to something that is not an address."
            ) from error
        return found

    def _is_own(self, url: str) -> bool:
        mine, other = urlsplit(self.upstream.url), urlsplit(url)
        return (mine.scheme, mine.netloc) == (other.scheme, other.netloc)

    def _refusal(self, status: int) -> UpstreamError:
        if status in (401, 403, 404):  # registries say any of these of what they do not have
            return UpstreamError(
                f"{self.upstream.name} has no such image, or not for everybody.", is_missing=True
            )
        return UpstreamError(f"{self.upstream.name} answered with status {status}.")


def _headers(response: httpcore.Response) -> Mapping[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}


async def _chunks(response: httpcore.Response) -> AsyncIterator[bytes]:
    waited, received = 0.0, 0
    iterator = aiter(response.aiter_stream())
    while True:
        began = time.monotonic()
        chunk = await anext(iterator, None)
        if chunk is None:
            return
        waited, received = waited + time.monotonic() - began, received + len(chunk)
        if waited > SLOW_SECONDS + received / SLOW_BYTES_PER_SECOND:
            raise UpstreamError("The registry elsewhere sends too slowly.")
        yield chunk


async def _whole(chunks: AsyncIterator[bytes], most: int) -> bytes:
    found = bytearray()
    async for chunk in chunks:
        found += chunk
        if len(found) > most:
            raise UpstreamError("The registry elsewhere sends more than a document may have.")
    return bytes(found)
