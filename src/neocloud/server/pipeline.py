"""Serve one request, from its bytes to its answer, the same for gRPC and JSON. Every error ends here.

No traceback leaves the server: refusals are ApiErrors, and an unexpected error becomes INTERNAL with the
request id under which the log has the cause. Calls are counted against a rate: known callers by subject,
others by the address they come from.
"""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from google.protobuf.message import DecodeError, Message

from neocloud import __version__
from neocloud.core import contract, releases
from neocloud.core.logs import bind, bind_more
from neocloud.core.metrics import Metrics
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import StaleVersion, StoreError
from neocloud.data_plane.addresses import source_network
from neocloud.data_plane.gateway_keys import CLIENT_HEADER, GatewayKey, ObjectGatewayKey
from neocloud.data_plane.rate_limits import Buckets, Rate
from neocloud.server.access import withhold_secrets
from neocloud.server.changes import named_resource, recall, record_refusal
from neocloud.server.request import IDEMPOTENCY_HEADER, SOURCE_HEADER, Endpoint, Request, Runtime, Serve
from neocloud.server.validation import MAX_REQUEST_BYTES, check_bounds, check_size

logger = logging.getLogger(__name__)

Decode = Callable[[type[Any]], Message]
"""Makes a request of its message class."""
Middleware = Callable[[Request, Serve], Awaitable[Message]]
"""Wraps the serving of every call of a known caller: serves it, refuses it, or answers later."""


async def no_middleware(request: Request, serve: Serve) -> Message:
    return await serve(request)


@dataclass(frozen=True)
class Answer:
    """Either a message or an error, and the id under which the request is logged."""

    request_id: str
    message: Any = None
    error: contract.ApiError | None = None
    service: str = ""
    is_logged: bool = True
    """Errors and changes are in the log under the request id; a read that went well is not."""
    version: str = ""
    """The server's version, for a client that named its own."""


class Rates:
    """The buckets of one server.

    Every method counts one call. It raises ApiError (too many requests) with the time to wait when its caller
    has used up what is allowed.
    """

    def __init__(self, subjects: Rate, unauthenticated: Rate, monotonic: Callable[[], float]) -> None:
        self._subjects = Buckets(subjects, monotonic)
        self._sign_ins = Buckets(unauthenticated, monotonic)
        self._unknown = Buckets(unauthenticated, monotonic)

    def count_call(self, subject_id: str) -> None:
        """Count a call of a signed-in subject."""
        _take(self._subjects, subject_id)

    def count_sign_in(self, address: str) -> None:
        """Count a call of a method that anyone may call."""
        _take(self._sign_ins, source_network(address))

    def count_unknown(self, address: str) -> None:
        """Count a call with an unknown token.

        Sign-ins have buckets of their own, so a program with an old token does not keep others behind the
        same address from signing in.
        """
        _take(self._unknown, source_network(address))


def _take(buckets: Buckets, caller: str) -> None:
    wait = buckets.take(caller)
    if wait:
        raise contract.too_many_requests(
            f"These are more than {buckets.per_second:g} calls a second."
            f" Wait {wait:.3f} s, then call less often.",
            retry_after_seconds=wait,
        )


def _refuse_far_release(headers: Mapping[str, str]) -> None:
    """Raise ApiError when this server does not work with the `neo` that sent these headers."""
    refusal = releases.refusal_by_server(headers, __version__)
    if refusal is not None:
        text = f"{refusal.message}. {refusal.next_step}."
        raise contract.ApiError(contract.Code.FAILED_PRECONDITION, text)


class Pipeline:
    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        runtime: Runtime,
        rates: Rates,
        middleware: Middleware = no_middleware,
    ) -> None:
        self._endpoints = endpoints
        self._runtime = runtime
        self._middleware = middleware
        self._rates = rates
        self._metrics = runtime.dependencies.provided.find(Metrics)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._endpoints)

    def max_bytes(self, path: str) -> int:
        """Return how many bytes a request of this method may have."""
        endpoint = self._endpoints.get(path)
        return endpoint.max_bytes if endpoint is not None else MAX_REQUEST_BYTES

    async def answer(self, path: str, decode: Decode, headers: Mapping[str, str], *, size: int) -> Answer:
        """Serve the method at `path`; `decode` makes the request of a message class, from `size` bytes."""
        request_id = secrets.token_hex(16)
        began = time.perf_counter()
        with bind(request_id=request_id, method=path):
            answer = await self._answer(path, decode, headers, request_id, size)
        if self._metrics is not None:
            code = answer.error.code if answer.error is not None else contract.Code.OK
            self._metrics.called(path, path in self._endpoints, code.name, time.perf_counter() - began)
        return replace(answer, version=__version__) if releases.HEADER in headers else answer

    async def _answer(
        self,
        path: str,
        decode: Decode,
        headers: Mapping[str, str],
        request_id: str,
        size: int,
    ) -> Answer:
        service = path.partition("/")[0]
        headers = self._from_client(headers)
        try:
            _refuse_far_release(headers)
            endpoint = self._endpoints.get(path)
            if endpoint is None:
                is_known = path in contract.methods()
                raise contract.unimplemented(path) if is_known else contract.no_such_method(path)
            check_size(size, endpoint.max_bytes)
            message = await self._serve(endpoint, decode, headers, request_id, size)
            return Answer(request_id, message, is_logged=endpoint.is_change)
        except contract.ApiError as error:
            logger.info("%r %s: %r", path, error.code.name, error.message)
            return Answer(request_id, error=error, service=service)
        except StaleVersion:
            error = contract.conflict(
                "", "The resource was changed meanwhile. Get it again and repeat the change."
            )
            return Answer(request_id, error=error, service=service)
        except StoreError as error:
            logger.error("%s store: %s", path, error)
            return Answer(request_id, error=contract.unavailable(str(error)), service=service)
        except Exception:
            logger.exception("%s failed (request %s)", path, request_id)
            return Answer(request_id, error=contract.internal(request_id), service=service)

    def _from_client(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers, with the address of the gateway's client as the source where there is one."""
        address = headers.get(CLIENT_HEADER)
        provided = self._runtime.dependencies.provided
        keys = (provided.find(GatewayKey), provided.find(ObjectGatewayKey))
        if address is None or not any(key is not None and key.is_shown(headers) for key in keys):
            return headers
        try:
            return {**headers, SOURCE_HEADER: str(ip_address(address))}
        except ValueError:
            return headers

    async def known_caller(self, headers: Mapping[str, str]) -> Subject:
        """Return the caller. Raise ApiError for an unknown one, and for one that calls too often."""
        try:
            subject = await self._runtime.authenticate(headers.get("authorization", ""))
        except contract.ApiError:
            self._rates.count_unknown(headers.get(SOURCE_HEADER, ""))
            raise
        self._rates.count_call(subject.id)
        return subject

    async def _serve(
        self,
        endpoint: Endpoint,
        decode: Decode,
        headers: Mapping[str, str],
        request_id: str,
        size: int,
    ) -> Message:
        subject = None
        if not endpoint.is_public:
            subject = await self.known_caller(headers)
            bind_more(subject=subject.id)
        elif not endpoint.is_internal:
            self._rates.count_sign_in(headers.get(SOURCE_HEADER, ""))
        try:
            message = decode(endpoint.rpc.input)
        except DecodeError:
            raise contract.bad_request([], "The request is not a message of the method's type.") from None
        check_bounds(message, size)
        request = Request(endpoint.rpc, message, headers, request_id, subject)
        try:
            answer = await self._middleware(request, endpoint.serve)
        except contract.ApiError as error:
            answer = await self._earlier_answer(endpoint, request)
            if answer is None:
                if endpoint.is_change:
                    await record_refusal(self._runtime, request, error, named_resource(request))
                raise
        contract.clear_input_only(answer)
        await withhold_secrets(self._runtime, request, answer)
        if endpoint.is_change:
            logger.info("%s by %s", endpoint.rpc.path, request.subject_id or "anyone")
        return answer

    async def _earlier_answer(self, endpoint: Endpoint, request: Request) -> Message | None:
        """A retry may be refused only because its first attempt succeeded: the resource is there, or gone."""
        if not endpoint.is_change or IDEMPOTENCY_HEADER not in request.headers:
            return None
        return await self._runtime.store.read(lambda tx: recall(tx, request))
