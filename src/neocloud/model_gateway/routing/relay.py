"""One model request in progress: its state, and its response on the way from the replica to the client.

Bytes pass unchanged, except for the model name where the model server uses another one, and the usage event.
"""

import asyncio
import re
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Protocol

import orjson

from neocloud.model_gateway.api.errors import (
    ACCESS_ENDED,
    COMPILING_TIMED_OUT,
    GENERATION_FAILED,
    OpenAiError,
    access_ended_error,
    model_server_error,
    not_compiled_error,
    replica_lost_error,
    replica_silent_error,
)
from neocloud.model_gateway.api.lengths import BYTES_PER_TOKEN
from neocloud.model_gateway.api.request import CHAT, RESPONSES, RequestContext
from neocloud.model_gateway.compiled.turns import Turn
from neocloud.model_gateway.metering.recorder import RequestRecord
from neocloud.model_gateway.metering.usage import EventStream, RequestStart, TokenUsage, usage_of_answer
from neocloud.model_gateway.routing.routes import Target
from neocloud.model_gateway.routing.traffic import Metrics
from neocloud.model_gateway.routing.upstream import Connection, ReplicaFailed

Headers = Sequence[tuple[bytes, bytes]]

CLIENT_LEFT = "client_left"
REPLICA_SILENT = "silent"
"""Reasons to stop a request, beside ACCESS_ENDED."""

SPEED_DECAY = 0.999
"""Share of the highest speed that each response keeps: a lower speed takes effect after some hundreds."""


class ResponseWriter(Protocol):
    """Receives the response. Each call may wait for a slow reader."""

    async def whole(self, status: int, headers: Headers, data: bytes) -> None: ...

    async def start(self, status: int, headers: Headers) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def end(self) -> None: ...


class BufferedResponse:
    """A ResponseWriter that keeps the response, for requests of the gateway itself."""

    status = 0
    data = b""

    async def whole(self, status: int, headers: Headers, data: bytes) -> None:
        self.status, self.data = status, data

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status

    async def write(self, data: bytes) -> None:
        self.data += data

    async def end(self) -> None:
        return


class RequestStopped(Exception):
    """The request was stopped from outside. The argument is the reason."""


class GenerationSpeeds:
    """The highest recent speed of a response by deployment, in tokens per second."""

    def __init__(self) -> None:
        self._highest: dict[str, float] = {}

    def add(self, deployment_id: str, tokens: int, seconds: float) -> None:
        before = self._highest.get(deployment_id, 0.0) * SPEED_DECAY
        self._highest[deployment_id] = max(before, tokens / max(seconds, 1e-3))

    def estimate(self, deployment_id: str, seconds: float, limit: int) -> int:
        """Return how many tokens a response may have after `seconds`; `limit` where no speed is known."""
        highest = self._highest.get(deployment_id)
        return limit if highest is None else min(int(highest * seconds) + 1, limit)


class ResponseRelay:
    """The state of one request. Only this class changes it; `context` is immutable.

    The proxy calls `begin`, `send` (again for another replica), `pass_on`, or `fail` when that failed, and at
    the end `result`. `stop` may be called at any time.
    """

    def __init__(
        self, context: RequestContext, writer: ResponseWriter, metrics: Metrics, speeds: GenerationSpeeds
    ) -> None:
        self.context = context
        self.caller = context.caller
        """The caller as it was when its access was last checked."""
        self.access_checked_at = time.perf_counter()
        self.stop_reason = ""
        self.status = 0
        self.first_byte_at = 0.0
        self.waits_since = 0.0
        """Since when the gateway waits for bytes of the model server; 0: it does not wait."""
        self.has_started = False
        """Part of a stream was passed to the client."""
        self.is_lost = False
        self.turn: Turn | None = None
        """Where the model server has to compile something for it that it may not have compiled before."""
        self._writer = writer
        self._metrics = metrics
        self._speeds = speeds
        self._connection: Connection | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._sent_at = 0.0
        self._was_sent = False
        self._was_refused = False
        self._is_complete = False
        self._size = 0
        """Bytes of a response that was not streamed."""
        self._usage: TokenUsage | None = None
        self._events = EventStream(
            hides_usage=not context.request.shows_usage,
            hides_each=not context.request.shows_each_usage,
            choices=context.request.choices,
        )
        self._target: Target
        self._record: RequestRecord
        self._model_fields: tuple[bytes, bytes] | None = None

    def stop(self, reason: str) -> None:
        """Stop the request, whether it waits, is being computed or is being sent. The first reason counts."""
        self.stop_reason = self.stop_reason or reason
        if self._connection is not None:
            self._connection.abort()
        if self._waiting is not None:
            self._waiting.cancel()

    def raise_if_stopped(self) -> None:
        if self.stop_reason:
            raise RequestStopped(self.stop_reason)

    async def wait_for(self, change: Coroutine[None, None, None], timeout_seconds: float) -> None:
        """Wait for a change, at most so long. Raises RequestStopped."""
        self._waiting = asyncio.ensure_future(change)
        await asyncio.wait({self._waiting}, timeout=timeout_seconds)
        self._waiting.cancel()
        self._waiting = None
        self.raise_if_stopped()

    @property
    def deployment_id(self) -> str:
        return self._target.deployment.id

    def begin(self, target: Target, record: RequestRecord) -> None:
        """The request is admitted; `result` gives what `record` is closed with."""
        self._target = target
        self._record = record
        if target.served_name != target.name:
            self._model_fields = (_model_field(target.served_name), _model_field(target.name))

    def start_again(self) -> None:
        """Forget a try that failed before anything was passed on, for `begin` with another target."""
        assert not self.has_started, "A response that has begun cannot be taken back."
        self.leave_turn()
        self.turn = None
        self.status, self.first_byte_at, self.waits_since = 0, 0.0, 0.0
        self.is_lost = self._was_sent = self._was_refused = False
        self._model_fields = None
        request = self.context.request
        self._events = EventStream(
            hides_usage=not request.shows_usage,
            hides_each=not request.shows_each_usage,
            choices=request.choices,
        )

    async def send(self, connection: Connection, data: bytes) -> bytes:
        """Send the request and return the first bytes of the response, or all of it where it is not a stream.

        Raises ReplicaFailed, RequestStopped.
        """
        self._connection = connection
        self.raise_if_stopped()
        self.waits_since = self._sent_at = time.perf_counter()
        self._was_sent = True
        connection.send(data)
        status = await connection.head()
        if status in (502, 503):
            raise ReplicaFailed(f"it answered {status}", was_sent=False)
        self.status = status
        first = await connection.read()
        self.first_byte_at = self.waits_since = time.perf_counter()
        if status == 200 and self.context.request.is_stream:
            return first
        pieces = [first]
        while piece := await connection.read():
            pieces.append(piece)
            self.waits_since = time.perf_counter()
        whole = b"".join(pieces)
        self._end_turn(is_error=status >= 500 or (status != 200 and COMPILING_TIMED_OUT in whole))
        return whole

    def _end_turn(self, *, is_error: bool) -> None:
        if self.turn is not None:
            self.turn.answered(is_error=is_error)

    def leave_turn(self) -> None:
        """The request has ended. A model server that did not answer keeps compiling, so the turn lasts."""
        if self.turn is None:
            return
        if not self._was_sent:
            self.turn.unused()
        elif self._is_complete or self.is_lost or self.status >= 300:
            self.turn.answered(is_error=self.is_lost or self.status >= 500)

    def release_connection(self) -> Connection | None:
        connection, self._connection = self._connection, None
        return connection

    async def pass_on(self, first: bytes) -> None:
        """Pass the response to the client, beginning with what `send` returned. Raises OpenAiError."""
        if self.status != 200:
            raise self._refusal(first)
        if self.context.request.is_stream:
            await self._pass_stream(first)
        else:
            await self._pass_whole(first)

    def _refusal(self, data: bytes) -> OpenAiError:
        """Return the error for what the model server said."""
        self._was_refused = True
        target, compiled = self._target, self.context.request.compiled
        error = model_server_error(self.status, data, served_name=target.served_name, name=target.name)
        if compiled is not None and self.turn is not None and error.message == GENERATION_FAILED:
            error = not_compiled_error(compiled.param)
            self.status = error.status
        return error

    async def _pass_whole(self, data: bytes) -> None:
        self.waits_since = 0.0
        try:
            shown = self.context.request.for_client(data)
        except ValueError as error:
            raise replica_lost_error() from error
        self._usage = usage_of_answer(data)
        self._is_complete = True
        self._size = len(data)
        await self._writer.whole(200, self._headers(b"application/json"), self._renamed(shown))

    async def _pass_stream(self, data: bytes) -> None:
        events, writer, connection = self._events, self._writer, self._connection
        assert connection is not None
        held = b""
        while data:
            visible = held + events.push(data)
            self._usage = events.usage
            held = visible if self._is_undecided(visible) else b""
            if visible and not held:
                self.waits_since = 0.0  # a slow reader is not a silent model server
                if not self.has_started:
                    await self._start_stream()
                await writer.write(self._renamed(visible))
            self.raise_if_stopped()
            self.waits_since = time.perf_counter()
            data = await connection.read()
        self._is_complete = True
        if not self.has_started:
            await self._start_stream()
        if held:
            await writer.write(self._renamed(held))
        await writer.end()

    def _is_undecided(self, begun: bytes) -> bool:
        """Return whether a stream may still fail since its schema does not compile: the first event of a chat
        comes before. Raises OpenAiError where it has failed."""
        if self.has_started or self.turn is None or self.context.request.path == RESPONSES:
            return False
        error = _ERROR_EVENT.search(begun)
        if error:
            self.status = _status_in(error[1])
            self._end_turn(is_error=True)
            raise self._refusal(error[1])
        if begun.count(b"\n\n") < (2 if self.context.request.path == CHAT else 1):
            return True
        self._end_turn(is_error=False)
        return False

    async def _start_stream(self) -> None:
        self.has_started = True
        await self._writer.start(200, self._headers(b"text/event-stream; charset=utf-8"))

    async def fail(self, error: Exception) -> None:
        """End an incomplete response: with an event in a stream that has begun, else by raising."""
        self.is_lost = True
        if self.stop_reason != ACCESS_ENDED:
            self._metrics.upstream_error(self._target.deployment.id, "within_answer")
        failure = self._failure()
        if not self.has_started:
            raise failure from error
        with suppress(ConnectionError):
            await self._writer.write(b"data: " + orjson.dumps(failure.body()) + b"\n\n")
            await self._writer.end()

    def result(self) -> tuple[TokenUsage | None, str]:
        """Return usage and outcome, to close the record with."""
        request = self.context.request
        is_left = self.stop_reason in (CLIENT_LEFT, ACCESS_ENDED)
        if self._is_complete and (self._usage is not None or not request.is_stream):
            outcome = "ok"
        else:
            outcome = "client_left" if is_left else "replica_lost"
        if self._usage is not None:
            if outcome == "ok" and self._usage.output:
                tokens = self._usage.output // request.sequences
                self._speeds.add(self._target.deployment.id, tokens, time.perf_counter() - self._sent_at)
            return self._usage, outcome
        if self._was_refused or not self._was_sent:
            return None, outcome if is_left else "refused"
        if not self.has_started and not self._is_complete and not is_left:
            return None, "replica_lost"  # the client received nothing
        return self._events.usage_so_far or self._estimated_usage(), outcome

    def _estimated_usage(self) -> TokenUsage:
        """Estimate the usage of a response of which the model server counted nothing.

        In a stream each event is a token, after a few that name the speaker. A response without streaming is
        received at its end only: the tokens that may have been generated until the client left are charged,
        so that clients cannot keep model servers busy for free by leaving early.
        """
        request, deployment = self.context.request, self._target.deployment
        if not request.is_stream and not self._is_complete:
            limit = request.max_total_output_tokens(deployment.context_length) // request.sequences
            seconds = time.perf_counter() - self._sent_at
            output = self._speeds.estimate(deployment.id, seconds, limit) * request.sequences
            return TokenUsage(request.input_tokens, 0, output, is_estimated=True)
        preamble = {CHAT: request.choices, RESPONSES: 4}.get(request.path, 0)
        output = max(self._events.events - preamble, 0) or self._size // (2 * BYTES_PER_TOKEN)
        return TokenUsage(request.input_tokens, 0, output, is_estimated=True)

    def _renamed(self, data: bytes) -> bytes:
        return data.replace(*self._model_fields) if self._model_fields else data

    def _headers(self, content_type: bytes) -> Headers:
        milliseconds = int((time.perf_counter() - self.context.arrived_at) * 1000)
        return [
            (b"content-type", content_type),
            (b"openai-processing-ms", b"%d" % milliseconds),
            *self._record.headers,
        ]

    def _failure(self) -> OpenAiError:
        if self.stop_reason == ACCESS_ENDED:
            return access_ended_error()
        return replica_silent_error() if self.stop_reason == REPLICA_SILENT else replica_lost_error()


_ERROR_EVENT = re.compile(rb'^data: (\{"error":.*\})$', re.MULTILINE)


def _status_in(event: bytes) -> int:
    """Return the status that an error event names; 500 where it names none."""
    with suppress(orjson.JSONDecodeError, KeyError, TypeError):
        code = orjson.loads(event)["error"]["code"]
        if isinstance(code, int) and 400 <= code < 600:
            return code
    return 500


def _model_field(name: str) -> bytes:
    return b'"model":' + orjson.dumps(name)


def request_start(context: RequestContext, target: Target) -> RequestStart:
    """Return what is recorded of a request before it is sent."""
    request, caller = context.request, context.caller
    return RequestStart(
        request_id=context.request_id,
        tenant_id=caller.tenant_id,
        project_id=context.project_id,
        subject_id=caller.subject_id,
        deployment_id=target.deployment.id,
        model_name=target.name,
        input_tokens=request.input_tokens,
        max_output_tokens=request.max_total_output_tokens(target.deployment.context_length),
        is_batch=context.is_batch,
    )
