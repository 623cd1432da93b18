"""The way of one answer from the engine to the client, and what it took.

Bytes pass as they are, but for the model's name where the engine has another, and the usage event.
"""

import time
from contextlib import suppress

import orjson

from neocloud.gateway.accounts import TokenUsage
from neocloud.gateway.asked import BYTES_PER_TOKEN, CHAT, RESPONSES
from neocloud.gateway.engine_errors import RIGHT_ENDED, from_engine, lost, right_ended, silent
from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.exchange import Exchange, Sink
from neocloud.gateway.metrics import Metrics
from neocloud.gateway.routes import Target
from neocloud.gateway.speeds import Speeds
from neocloud.gateway.usage import EventStream, usage_of_answer


class Passing:
    """`all`, or `lost` when that failed; then `result`."""

    def __init__(
        self, exchange: Exchange, target: Target, sink: Sink, metrics: Metrics, speeds: Speeds
    ) -> None:
        self._speeds = speeds
        self._exchange = exchange
        self._target = target
        self._sink = sink
        self._metrics = metrics
        self._events = EventStream(hides_usage=not exchange.asked.shows_usage)
        self._usage: TokenUsage | None = None
        self._was_refused = False
        self._is_complete = False
        self.has_started = False
        self._size = 0
        """Bytes of an answer that was not streamed."""
        self.is_lost = False
        self._names: tuple[bytes, bytes] | None = None
        if target.engine_name != target.name:
            self._names = (_model_field(target.engine_name), _model_field(target.name))

    async def all(self, first: bytes) -> None:
        exchange = self._exchange
        if exchange.status != 200:
            self._was_refused = True
            names = {"engine_name": self._target.engine_name, "name": self._target.name}
            raise from_engine(exchange.status, first, **names)
        if exchange.asked.is_stream:
            await self._stream(first)
        else:
            await self._whole(first)

    async def _whole(self, data: bytes) -> None:
        self._exchange.heard_at = 0.0
        self._usage = usage_of_answer(data)
        self._is_complete = True
        self._size = len(data)
        await self._sink.whole(200, self._headers(b"application/json"), self._renamed(data))

    async def _stream(self, data: bytes) -> None:
        exchange, events, sink = self._exchange, self._events, self._sink
        connection = exchange.connection
        assert connection is not None
        while data:
            seen = events.push(data)
            self._usage = events.usage
            if seen:
                exchange.heard_at = 0.0  # a slow reader is no silence of the engine
                if not self.has_started:
                    self.has_started = True
                    await sink.start(200, self._headers(b"text/event-stream; charset=utf-8"))
                await sink.write(self._renamed(seen))
            exchange.check()
            exchange.heard_at = time.perf_counter()
            data = await connection.read()
        self._is_complete = True
        if not self.has_started:
            self.has_started = True
            await sink.start(200, self._headers(b"text/event-stream; charset=utf-8"))
        await sink.end()

    async def lost(self, error: Exception) -> None:
        """The engine is gone in the middle of a stream: say so in it, as no status can any more."""
        self.is_lost = True
        if self._exchange.reason != RIGHT_ENDED:
            self._metrics.upstream_error(self._target.deployment.id, "within_answer")
        if not self.has_started:
            raise _failure(self._exchange) from error
        words = orjson.dumps(_failure(self._exchange).body())
        with suppress(ConnectionError):
            await self._sink.write(b"data: " + words + b"\n\n")
            await self._sink.end()

    def result(self) -> tuple[TokenUsage | None, str]:
        """For the account."""
        exchange = self._exchange
        is_left = exchange.reason in ("client_left", RIGHT_ENDED)
        if self._is_complete and (self._usage is not None or not exchange.asked.is_stream):
            outcome = "ok"
        else:
            outcome = "client_left" if is_left else "replica_lost"
        if self._usage is not None:
            if outcome == "ok" and self._usage.output:
                tokens = self._usage.output // exchange.asked.sequences
                self._speeds.saw(self._target.deployment.id, tokens, time.perf_counter() - exchange.sent_at)
            return self._usage, outcome
        if self._was_refused or not exchange.was_sent:
            return None, outcome if is_left else "refused"
        if not self.has_started and not self._is_complete and not is_left:
            return None, "replica_lost"  # nobody got anything of it
        return self._estimate(), outcome

    def _estimate(self) -> TokenUsage:
        """An engine sends an event a token, after a few that say who speaks.

        Of an answer that would have come as a whole nothing is seen before its end. What its engine may have
        made until the client left is charged, or whoever leaves early keeps engines busy for nothing.
        """
        asked = self._exchange.asked
        if not asked.is_stream and not self._is_complete:
            deployment = self._target.deployment
            most = asked.most_output_tokens(deployment.context_length) // asked.sequences
            seconds = time.perf_counter() - self._exchange.sent_at
            made = self._speeds.tokens(deployment.id, seconds, most) * asked.sequences
            return TokenUsage(asked.input_tokens, 0, made, is_estimated=True)
        before = {CHAT: asked.choices, RESPONSES: 4}.get(asked.path, 0)
        output = max(self._events.events - before, 0) or self._size // (2 * BYTES_PER_TOKEN)
        return TokenUsage(asked.input_tokens, 0, output, is_estimated=True)

    def _renamed(self, data: bytes) -> bytes:
        return data.replace(*self._names) if self._names else data

    def _headers(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        exchange = self._exchange
        assert exchange.account is not None
        milliseconds = int((time.perf_counter() - exchange.arrived) * 1000)
        return [
            (b"content-type", kind),
            (b"openai-processing-ms", b"%d" % milliseconds),
            *exchange.account.headers,
        ]


def _model_field(name: str) -> bytes:
    return b'"model":' + orjson.dumps(name)


def _failure(exchange: Exchange) -> OpenAiError:
    if exchange.reason == RIGHT_ENDED:
        return right_ended()
    return silent() if exchange.reason == "silent" else lost()
