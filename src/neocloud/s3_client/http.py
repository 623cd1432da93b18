"""Signed requests to one S3 endpoint, and their answers as they come. Bounded in time and size."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import httpcore

from neocloud.s3_client import answers
from neocloud.s3_client.limits import Limits
from neocloud.s3_client.network import DestinationRefused
from neocloud.s3_client.signing import Signer
from neocloud.s3_client.types import Endpoint, EndpointError

CONNECT_SECONDS, QUIET_SECONDS, POOL_SECONDS = 10.0, 60.0, 600.0
SLOW_SECONDS, SLOW_BYTES_PER_SECOND = 60.0, 4096
"""A body may take so many seconds, and one more for each so many bytes."""
Body = bytes | AsyncIterator[bytes]


@dataclass(frozen=True)
class Patience:
    """Timeouts in seconds of one client of an endpoint."""

    quiet: float = QUIET_SECONDS
    """For the next bytes, in either direction."""
    pool: float = POOL_SECONDS
    """For a free connection."""

    def timeouts(self) -> dict[str, float]:
        return {"connect": CONNECT_SECONDS, "read": self.quiet, "write": self.quiet, "pool": self.pool}


class Answer:
    """An answer with success, whose body is read once."""

    def __init__(self, response: httpcore.Response, http: "HttpEndpoint") -> None:
        self.status = response.status
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
        }
        self._response, self._http = response, http

    @property
    def length(self) -> int | None:
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises EndpointError where it is cut or comes too slowly."""
        limits, waited, received = self._http.limits, 0.0, 0
        iterator = aiter(self._response.aiter_stream())
        while True:
            began = time.monotonic()
            try:
                chunk = await anext(iterator, None)
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
                raise self._http.failure("IncompleteBody", "The body of the object was cut off.") from error
            if chunk is None:
                return
            waited, received = waited + time.monotonic() - began, received + len(chunk)
            if waited > SLOW_SECONDS + received / SLOW_BYTES_PER_SECOND:
                raise self._http.failure("RequestTimeout", "The body of the object comes too slowly.")
            if limits is not None:
                await limits.bytes.take(len(chunk))
            yield chunk

    async def read(self) -> bytes:
        """Return a short body. Raises EndpointError."""
        found = b""
        async for chunk in self.chunks():
            found += chunk
            if len(found) > answers.MAX_ANSWER_BYTES:
                raise answers.unreadable(self._http.endpoint.origin, "more bytes than expected")
        return found


class HttpEndpoint:
    def __init__(
        self,
        endpoint: Endpoint,
        pool: httpcore.AsyncConnectionPool,
        limits: Limits | None = None,
        *,
        patience: Patience | None = None,
        agent: str = "neocloud-transfer",
    ) -> None:
        """`limits` are those of a source; `agent` is sent as User-Agent."""
        self.endpoint, self.limits = endpoint, limits
        self._timeouts, self._agent = (patience or Patience()).timeouts(), agent
        self._pool = pool
        parts = urlsplit(endpoint.url)
        self._scheme, self._port = parts.scheme, parts.port
        self._host = (parts.hostname or "").encode("idna" if ":" not in (parts.hostname or "") else "ascii")
        self._netloc = parts.netloc
        self._signer = Signer(endpoint)

    async def close(self) -> None:
        await self._pool.aclose()

    def failure(self, code: str, message: str) -> EndpointError:
        return EndpointError(self.endpoint.origin, code, message, is_transient=True)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        key: str = "",
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        length: int | None = None,
    ) -> AsyncGenerator[Answer]:
        """Send a request for the bucket or a key in it; `length` is that of a body which comes in chunks.
        Raises EndpointError unless it is answered with success."""
        if self.limits is not None:
            await self.limits.requests.take()
        target = f"/{self.endpoint.bucket}" + (f"/{quote(key, safe='/-_.~')}" if key else "")
        if query:
            target += "?" + "&".join(
                f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query)
            )
        sent = self._headers(method, target, headers or {})
        if method in ("PUT", "POST"):
            sent["Content-Length"] = str(len(body) if isinstance(body, bytes) else length)
        url = httpcore.URL(
            scheme=self._scheme.encode(), host=self._host, port=self._port, target=target.encode()
        )
        try:
            async with self._pool.stream(
                method,
                url,
                headers=list(sent.items()),
                content=body,
                extensions={"timeout": self._timeouts},
            ) as response:
                answer = Answer(response, self)
                if not 200 <= answer.status < 300:
                    raise answers.error_of(answer.status, await _start_of(answer), self.endpoint.origin)
                yield answer
        except DestinationRefused as error:
            raise EndpointError(self.endpoint.origin, "EndpointRefused", str(error)) from error
        except httpcore.TimeoutException as error:
            raise self.failure("RequestTimeout", "The endpoint did not answer in time.") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
            why = f"The endpoint cannot be reached ({type(error).__name__})."
            raise self.failure("ConnectionError", why) from error

    def _headers(self, method: str, target: str, headers: Mapping[str, str]) -> dict[str, str]:
        url = f"{self._scheme}://{self._netloc}{target}"
        found = self._signer.sign(method, url, {**headers, "Host": self._netloc})
        return {**found, "Accept-Encoding": "identity", "User-Agent": self._agent}


async def _start_of(answer: Answer) -> bytes:
    """Return the body of an error, as far as it is needed."""
    found = b""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            async for chunk in answer.chunks():
                found += chunk
                if len(found) > 65536:
                    break
    except (EndpointError, TimeoutError):
        pass
    return found
